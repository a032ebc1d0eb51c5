"""Guesses that a draft model drew, judged by our sampler on vLLM's own: the law of plain sampling.

Thousands of requests in one batch, two guesses each, over a vocabulary of six. What a request says is made up
to two tokens by plain draws, and the pairs are held against their exact probabilities by a chi-square test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

pytest.importorskip("vllm", reason="needs the extra `vllm`")

from test_vllm_sampler import CONFIG
from test_vllm_sampler_identity import runner_of, sampling
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors, MinTokensLogitsProcessor
from vllm.v1.sample.sampler import Sampler as StockSampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from forerun.config import SpeculationConfig
from forerun.engines.vllm.sampler import SpeculativeSampler
from forerun.engines.vllm.step_plan import StepPlan

NUM, VOCAB = 6000, 6
P = torch.tensor([[0.35, 0.05, 0.2, 0.1, 0.25, 0.05], [0.02, 0.4, 0.08, 0.3, 0.1, 0.1], [1 / 6] * 6])
Q = torch.tensor([[0.1, 0.4, 0.1, 0.2, 0.1, 0.1], [0.3, 0.1, 0.1, 0.1, 0.2, 0.2]])

pytestmark = pytest.mark.filterwarnings("default")


def drawn(generator: torch.Generator) -> torch.Tensor:
    """Two guesses for every request, drawn from q."""
    return torch.stack([torch.multinomial(q, NUM, True, generator=generator) for q in Q], dim=1)


def say(guesses: torch.Tensor, names: Callable[[str], bool], **config: Any) -> list[list[int]]:
    """What every request says; those of these names count as drawn for."""
    outputs: list[list[int]] = [[] for _ in range(NUM)]
    extra = {"extra_args": config.pop("extra_args", None)}
    runner = runner_of(outputs, LogitsProcessors(), **extra)
    runner._draft_probs = Q.expand(NUM, *Q.shape)
    runner._draft_prob_req_ids = runner.input_batch.req_ids
    sampler = SpeculativeSampler(StockSampler(), runner, SpeculationConfig(**config))
    sampler.plan = StepPlan(frozenset(filter(names, runner.input_batch.req_ids)))
    metadata = SpecDecodeMetadata.make_dummy(guesses.tolist(), torch.device("cpu"))
    output = sampler(metadata, None, P[: guesses.shape[1] + 1].log().repeat(NUM, 1), sampling(NUM, outputs))
    return [[token for token in row if token >= 0] for row in output.sampled_token_ids.tolist()]


def p_value(said: list[list[int]], p: torch.Tensor = P) -> float:
    """How likely pairs so far from p are, if they are from p."""
    rng = np.random.default_rng(5)
    second = p[1].double().numpy()
    counts = np.zeros((VOCAB, VOCAB))
    for tokens in said:
        last = tokens[1] if len(tokens) > 1 else rng.choice(VOCAB, p=second / second.sum())
        counts[tokens[0], last] += 1
    expected = np.outer(p[0].double(), p[1].double())
    return float(chisquare(counts.ravel(), NUM * expected.ravel() / expected.sum()).pvalue)


@pytest.mark.parametrize("verifier", ["auto", "reject", "block", "follow"])
def test_drawn_guesses_keep_the_law(verifier: str) -> None:
    torch.manual_seed(1)
    guesses = drawn(torch.Generator().manual_seed(2))
    said = say(guesses, lambda _: True, verifier=verifier)
    assert p_value(said) > 1e-3
    kept = np.mean([len(tokens) - 1 for tokens in said])
    expected = float(torch.minimum(P[0], Q[0]).sum())
    assert kept > (0.1 if verifier == "follow" else 0.9 * expected), "guesses did stand"


def test_half_of_the_batch_drawn_and_half_looked_up_keep_the_law() -> None:
    torch.manual_seed(3)
    guesses = drawn(torch.Generator().manual_seed(4))
    guesses[::2] = torch.tensor([1, 3])  # looked up: always the same
    assert p_value(say(guesses, lambda name: int(name.split("-")[1]) % 2 == 1)) > 1e-3


def test_sabotaged_a_lookup_that_is_judged_by_the_draws_q_breaks_it() -> None:
    torch.manual_seed(3)
    guesses = torch.tensor([1, 3]).expand(NUM, 2)
    assert p_value(say(guesses, lambda _: True)) < 1e-9
    lucky = drawn(torch.Generator().manual_seed(4))
    same = {f"request-{place}" for place in (lucky[:, 0] == 1).nonzero()[:, 0].tolist()}
    assert p_value(say(torch.ones(NUM, 1, dtype=torch.int64), lambda name: name in same)) < 1e-9, (
        "to judge by q just where a lookup happens to be what was drawn is to look at values"
    )


def test_lenience_keeps_more_and_no_token_is_much_likelier_than_it_should_be() -> None:
    torch.manual_seed(6)
    guesses = drawn(torch.Generator().manual_seed(7))
    strict = say(guesses, lambda _: True)
    lenient = say(guesses, lambda _: True, extra_args={"forerun_lenience": 0.5})
    assert np.mean([len(tokens) for tokens in lenient]) > np.mean([len(tokens) for tokens in strict]) + 0.1
    first = np.bincount([tokens[0] for tokens in lenient], minlength=VOCAB) / NUM
    assert (first < P[0].numpy() / 0.5 + 0.03).all()
    assert p_value(lenient) < 1e-6, "it is lossy, and says so"


def test_a_q_that_is_none_is_not_believed() -> None:
    torch.manual_seed(8)
    guesses = drawn(torch.Generator().manual_seed(9))
    spoilt = Q.clone()
    try:
        Q[0, 0] = float("nan")
        said = say(guesses, lambda _: True)
    finally:
        Q.copy_(spoilt)
    assert p_value(said) > 1e-3


def test_where_p_is_none_a_request_says_what_plain_sampling_says() -> None:
    torch.manual_seed(8)
    guesses = drawn(torch.Generator().manual_seed(9))
    before = P.clone()
    try:
        P[1] = float("nan")
        said = say(guesses, lambda _: True)
    finally:
        P.copy_(before)
    assert all(len(tokens) == 1 for tokens in said)


def test_requests_below_their_minimum_are_followed() -> None:
    """What a processor remembers of guesses that fall cannot be taken back, so they are not judged."""
    outputs: list[list[int]] = [[], []]
    processor = MinTokensLogitsProcessor(CONFIG, torch.device("cpu"), False)
    processors = LogitsProcessors([processor])
    params = SamplingParams(min_tokens=3, stop_token_ids=[0])
    added: list[Any] = [(0, params, [], outputs[0])]
    processor.update_state(BatchUpdate(batch_size=2, removed=[], added=added, moved=[]))
    runner = runner_of(outputs, processors)
    runner._draft_probs, runner._draft_prob_req_ids = Q.expand(2, *Q.shape), runner.input_batch.req_ids
    sampler = SpeculativeSampler(StockSampler(), runner, SpeculationConfig())
    sampler.plan = StepPlan(frozenset(runner.input_batch.req_ids))
    judged = sampler._judged([[1, 2], [1, 2]], sampling(2, outputs, logitsprocs=processors))
    assert list(judged) == [1]


def test_the_engines_warm_up_has_guesses_and_no_requests() -> None:
    sampler = SpeculativeSampler(StockSampler(), runner_of([], LogitsProcessors()), SpeculationConfig())
    metadata = SpecDecodeMetadata.make_dummy([[0], [0]], torch.device("cpu"))
    output = sampler(metadata, None, torch.randn(4, VOCAB), sampling(2, [[], []]))
    assert output.sampled_token_ids.shape == (2, 2)
