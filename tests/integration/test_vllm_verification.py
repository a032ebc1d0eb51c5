"""Draft tokens sampled by a draft model, verified on top of vLLM's sampler: the distribution is the target's.

6000 requests in one batch, two draft tokens each, over a vocabulary of six. Outputs of one token are
completed to two by samples from p, and a chi-square test compares the pairs with their exact probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

pytest.importorskip("vllm", reason="needs the extra `vllm`")

from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors, MinTokensLogitsProcessor
from vllm.v1.sample.sampler import Sampler as StockSampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from forerun.config import SpeculationConfig
from forerun.engines.vllm.sparse_q import SparseQ
from forerun.engines.vllm.step_plan import StepPlan
from forerun.engines.vllm.v1.sampler import SpeculativeSampler
from forerun.types import Draft, Proposal
from integration.test_vllm_sampler import CONFIG
from integration.test_vllm_sampler_identity import runner_of, sampling

NUM, VOCAB = 6000, 6
P = torch.tensor([[0.35, 0.05, 0.2, 0.1, 0.25, 0.05], [0.02, 0.4, 0.08, 0.3, 0.1, 0.1], [1 / 6] * 6])
Q = torch.tensor([[0.1, 0.4, 0.1, 0.2, 0.1, 0.1], [0.3, 0.1, 0.1, 0.1, 0.2, 0.2]])

pytestmark = pytest.mark.filterwarnings("default")


def sample_drafts(generator: torch.Generator) -> torch.Tensor:
    """Two draft tokens for every request, sampled from q."""
    return torch.stack([torch.multinomial(q, NUM, True, generator=generator) for q in Q], dim=1)


def emit(
    drafts: torch.Tensor, is_sampled: Callable[[str], bool], q: SparseQ | None = None, **config: Any
) -> list[list[int]]:
    """The output of every request; the plan lists the names that are sampled, or has a q for each."""
    outputs: list[list[int]] = [[] for _ in range(NUM)]
    extra = {"extra_args": config.pop("extra_args", None)}
    runner = runner_of(outputs, LogitsProcessors(), **extra)
    runner._draft_probs = Q.expand(NUM, *Q.shape)
    runner._draft_prob_req_ids = runner.input_batch.req_ids
    sampler = SpeculativeSampler(StockSampler(), runner, SpeculationConfig(**config))
    names = frozenset(filter(is_sampled, runner.input_batch.req_ids))
    sampler.plan = StepPlan(sampled=names) if q is None else StepPlan(q=dict.fromkeys(names, q))
    metadata = SpecDecodeMetadata.make_dummy(drafts.tolist(), torch.device("cpu"))
    output = sampler(metadata, None, P[: drafts.shape[1] + 1].log().repeat(NUM, 1), sampling(NUM, outputs))
    return [[token for token in row if token >= 0] for row in output.sampled_token_ids.tolist()]


def p_value(emitted: list[list[int]], p: torch.Tensor = P) -> float:
    """The p-value of the chi-square test that the pairs follow p."""
    rng = np.random.default_rng(5)
    second = p[1].double().numpy()
    counts = np.zeros((VOCAB, VOCAB))
    for tokens in emitted:
        last = tokens[1] if len(tokens) > 1 else rng.choice(VOCAB, p=second / second.sum())
        counts[tokens[0], last] += 1
    expected = np.outer(p[0].double(), p[1].double())
    return float(chisquare(counts.ravel(), NUM * expected.ravel() / expected.sum()).pvalue)


@pytest.mark.parametrize("verifier", ["auto", "rejection", "block", "match"])
def test_sampled_drafts_leave_the_target_distribution_unchanged(verifier: str) -> None:
    torch.manual_seed(1)
    drafts = sample_drafts(torch.Generator().manual_seed(2))
    emitted = emit(drafts, lambda _: True, verifier=verifier)
    assert p_value(emitted) > 1e-3
    num_accepted = np.mean([len(tokens) - 1 for tokens in emitted])
    expected = float(torch.minimum(P[0], Q[0]).sum())
    assert num_accepted > (0.1 if verifier == "match" else 0.9 * expected), "draft tokens were accepted"


def test_a_batch_of_sampled_and_looked_up_drafts_leaves_the_target_distribution_unchanged() -> None:
    torch.manual_seed(3)
    drafts = sample_drafts(torch.Generator().manual_seed(4))
    drafts[::2] = torch.tensor([1, 3])  # looked up: always the same
    assert p_value(emit(drafts, lambda name: int(name.split("-")[1]) % 2 == 1)) > 1e-3


def test_sabotaged_a_lookup_that_is_verified_against_q_changes_the_distribution() -> None:
    torch.manual_seed(3)
    drafts = torch.tensor([1, 3]).expand(NUM, 2)
    assert p_value(emit(drafts, lambda _: True)) < 1e-9
    sampled = sample_drafts(torch.Generator().manual_seed(4))
    same = {f"request-{index}" for index in (sampled[:, 0] == 1).nonzero()[:, 0].tolist()}
    assert p_value(emit(torch.ones(NUM, 1, dtype=torch.int64), lambda name: name in same)) < 1e-9, (
        "verifying against q just where a lookup equals the sample conditions on its value"
    )


SPARSE = torch.tensor([[0.5, 0.0, 0.3, 0.0, 0.2, 0.0], [0.0, 0.6, 0.0, 0.4, 0.0, 0.0]])


def chain_of(q: torch.Tensor) -> Draft:
    """A chain that could have been sampled from these rows."""
    return Draft.chain(q.argmax(-1).tolist(), q=[Proposal(row) for row in q])


@pytest.mark.parametrize("verifier", ["auto", "rejection"])
def test_drafts_sampled_in_the_scheduler_leave_the_target_distribution_unchanged(verifier: str) -> None:
    torch.manual_seed(11)
    drafts = torch.stack([torch.multinomial(q, NUM, True) for q in SPARSE], dim=1)
    emitted = emit(drafts, lambda _: True, SparseQ.of(chain_of(SPARSE)), verifier=verifier)
    assert p_value(emitted) > 1e-3
    expected = float(torch.minimum(P[0], SPARSE[0]).sum())
    assert np.mean([len(tokens) > 1 for tokens in emitted]) > 0.9 * expected, "draft tokens were accepted"


def test_sabotaged_a_q_that_was_not_sampled_from_changes_the_distribution() -> None:
    torch.manual_seed(11)
    flat = torch.where(SPARSE > 0, 1.0, 0.0)
    drafts = torch.stack([torch.multinomial(q, NUM, True) for q in SPARSE], dim=1)
    wrong = SparseQ.of(chain_of(flat / flat.sum(-1, keepdim=True)))
    assert p_value(emit(drafts, lambda _: True, wrong)) < 1e-6


def test_a_truncated_draft_has_the_first_rows_of_its_q() -> None:
    q = SparseQ.of(chain_of(SPARSE))
    assert torch.equal(q.dense(2, VOCAB), SPARSE)
    assert torch.equal(q.dense(1, VOCAB), SPARSE[:1])


def test_lenience_accepts_more_and_bounds_the_probability_of_every_token() -> None:
    torch.manual_seed(6)
    drafts = sample_drafts(torch.Generator().manual_seed(7))
    strict = emit(drafts, lambda _: True)
    lenient = emit(drafts, lambda _: True, extra_args={"forerun_lenience": 0.5})
    assert np.mean([len(tokens) for tokens in lenient]) > np.mean([len(tokens) for tokens in strict]) + 0.1
    first = np.bincount([tokens[0] for tokens in lenient], minlength=VOCAB) / NUM
    assert (first < P[0].numpy() / 0.5 + 0.03).all()
    assert p_value(lenient) < 1e-6, "lenience is lossy"


def test_a_q_that_is_not_a_distribution_is_ignored() -> None:
    torch.manual_seed(8)
    drafts = sample_drafts(torch.Generator().manual_seed(9))
    before = Q.clone()
    try:
        Q[0, 0] = float("nan")
        emitted = emit(drafts, lambda _: True)
    finally:
        Q.copy_(before)
    assert p_value(emitted) > 1e-3


def test_if_p_is_not_a_distribution_each_request_emits_one_token() -> None:
    torch.manual_seed(8)
    drafts = sample_drafts(torch.Generator().manual_seed(9))
    before = P.clone()
    try:
        P[1] = float("nan")
        emitted = emit(drafts, lambda _: True)
    finally:
        P.copy_(before)
    assert all(len(tokens) == 1 for tokens in emitted)


def test_requests_below_their_minimum_are_not_verified_by_rejection() -> None:
    """The state of the minimum-tokens processor cannot be rolled back after a rejection."""
    outputs: list[list[int]] = [[], []]
    processor = MinTokensLogitsProcessor(CONFIG, torch.device("cpu"), False)
    processors = LogitsProcessors([processor])
    params = SamplingParams(min_tokens=3, stop_token_ids=[0])
    added: list[Any] = [(0, params, [], outputs[0])]
    processor.update_state(BatchUpdate(batch_size=2, removed=[], added=added, moved=[]))
    runner = runner_of(outputs, processors)
    runner._draft_probs, runner._draft_prob_req_ids = Q.expand(2, *Q.shape), runner.input_batch.req_ids
    sampler = SpeculativeSampler(StockSampler(), runner, SpeculationConfig())
    sampler.plan = StepPlan(sampled=frozenset(runner.input_batch.req_ids))
    settings = sampling(2, outputs, logitsprocs=processors)
    rejection = sampler._rejection_requests([[1, 2], [1, 2]], settings, VOCAB)
    assert list(rejection) == [1]


def test_a_warm_up_batch_has_draft_tokens_and_no_requests() -> None:
    sampler = SpeculativeSampler(StockSampler(), runner_of([], LogitsProcessors()), SpeculationConfig())
    metadata = SpecDecodeMetadata.make_dummy([[0], [0]], torch.device("cpu"))
    output = sampler(metadata, None, torch.randn(4, VOCAB), sampling(2, [[], []]))
    assert output.sampled_token_ids.shape == (2, 2)
