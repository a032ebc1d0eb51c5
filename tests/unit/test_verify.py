from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from forerun.config import VerifierName
from forerun.core.batch_sampling import BatchSampling
from forerun.core.block_verification import block_verify
from forerun.core.draft_forest import Forest
from forerun.core.logits_processors import TokenHistory
from forerun.core.logits_warper import probabilities
from forerun.core.rejection_sampling import rejection_sample
from forerun.core.target_distribution import TargetDistribution
from forerun.core.verify import Method, VerifyRequest, method_for, verification_noise, verify
from forerun.errors import (
    ConfigurationError,
    InvalidDistribution,
    InvalidDraft,
    InvalidSampling,
    VocabularyMismatch,
)
from forerun.types import Draft, Proposal, SamplingParams, Verdict

Q = Proposal(torch.tensor([0.5, 0.5]))
CHAIN = Draft.chain([0, 1], q=[Q, Q])
TREE = Draft(np.array([0, 1]), np.array([-1, -1]), np.array([True, True]), {-1: Q})


@pytest.mark.parametrize(
    ("draft", "sampling", "lenience", "verifier", "method"),
    [
        (CHAIN, SamplingParams(temperature=0), 1.0, "auto", Method.MATCH),
        (CHAIN, SamplingParams(seed=1), 1.0, "auto", Method.MATCH),
        (Draft.chain([0, 1]), SamplingParams(), 1.0, "auto", Method.MATCH),
        (Draft.chain([]), SamplingParams(), 1.0, "auto", Method.MATCH),
        (CHAIN, SamplingParams(), 1.0, "auto", Method.BLOCK),
        (CHAIN, SamplingParams(), 1.0, "block", Method.BLOCK),
        (CHAIN, SamplingParams(), 1.0, "rejection", Method.REJECTION),
        (CHAIN, SamplingParams(), 1.0, "match", Method.MATCH),
        (TREE, SamplingParams(), 1.0, "auto", Method.REJECTION),
        (TREE, SamplingParams(), 1.0, "block", Method.REJECTION),
        (CHAIN, SamplingParams(), 0.5, "auto", Method.LENIENT),
        (CHAIN, SamplingParams(temperature=0), 0.5, "auto", Method.LENIENT_GREEDY),
    ],
)
def test_each_request_gets_its_verifier(
    draft: Draft, sampling: SamplingParams, lenience: float, verifier: str, method: Method
) -> None:
    each = VerifyRequest(draft, sampling, key=0, length=0, lenience=lenience)
    assert method_for(each, verifier) is method  # type: ignore[arg-type]


def test_a_mixed_batch_gets_the_verdicts_of_its_requests_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    size, requests = 50, []
    for i in range(40):
        qs = [Proposal(torch.softmax(torch.randn(size, generator=generator), dim=-1)) for _ in range(i % 12)]
        tokens = [int(torch.multinomial(q.probs, 1, generator=generator)) for q in qs]
        sampling = SamplingParams(
            temperature=(0.0, 1.0, 0.7)[i % 3],
            top_p=(1.0, 0.9)[i % 2],
            seed=(None, 5)[i // 2 % 2],
            repetition_penalty=(1.0, 1.3)[i // 3 % 2],
        )
        draft = Draft.chain(tokens, q=qs if i % 5 else [])
        requests.append(
            VerifyRequest(
                draft,
                sampling,
                key=i,
                length=9,
                history=TokenHistory([1], [2, 3]),
                lenience=(1, 0.5)[i % 7 == 0],
            )
        )
    logits = torch.randn(sum(len(each.draft) + 1 for each in requests), size, generator=generator) * 2
    together = verify(requests, logits)
    row = 0
    for each, verdict in zip(requests, together, strict=True):
        rows = logits[row : row + len(each.draft) + 1]
        assert verify([each], rows) == [verdict]
        row += len(each.draft) + 1


def test_bfloat16_logits_are_accepted() -> None:
    logits = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    for sampling in (SamplingParams(temperature=0), SamplingParams(seed=1), SamplingParams(seed=1, top_k=3)):
        each = VerifyRequest(Draft.chain([1, 2]), sampling, key=1, length=5)
        assert verify([each], logits) == verify([each], logits.float())


def test_a_wrong_number_of_logit_rows_raises() -> None:
    with pytest.raises(InvalidDistribution, match="got 2 rows of logits, expected 3"):
        verify([VerifyRequest(Draft.chain([1, 2]), SamplingParams(), key=0, length=0)], torch.zeros(2, 4))


@pytest.mark.parametrize("token", [-1, 4, 10**6])
def test_a_draft_token_outside_the_vocabulary_raises(token: int) -> None:
    with pytest.raises(InvalidDraft, match="the vocabulary has 4"):
        verify([VerifyRequest(Draft.chain([token]), SamplingParams(), key=0, length=0)], torch.zeros(2, 4))


def test_a_q_of_another_vocabulary_size_raises() -> None:
    draft = Draft.chain([1], q=[Proposal(torch.full((3,), 1 / 3))])
    with pytest.raises(VocabularyMismatch, match="q has 3 tokens, the target 4"):
        verify([VerifyRequest(draft, SamplingParams(), key=0, length=0)], torch.zeros(2, 4))


@pytest.mark.parametrize(
    "sampling", [SamplingParams(temperature=0), SamplingParams(seed=1), SamplingParams(top_p=0.5, seed=1)]
)
def test_nan_logits_raise(sampling: SamplingParams) -> None:
    logits = torch.full((1, 8), float("nan"))
    with pytest.raises(InvalidDistribution):
        verify([VerifyRequest(Draft.chain([]), sampling, key=0, length=0)], logits)


def test_rows_behind_a_rejected_draft_token_are_ignored() -> None:
    """Rows that are never reached may have no allowed token, or be NaN."""
    sampling = SamplingParams(seed=1, allowed_token_ids=(1, 2), bad_words=((3, 1), (3, 2)))
    logits = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    (baseline,) = verify([VerifyRequest(Draft.chain([]), sampling, key=1, length=5)], logits[:1])
    assert verify([VerifyRequest(Draft.chain([3]), sampling, key=1, length=5)], logits) == [baseline]
    logits[1] = float("nan")
    free = SamplingParams(seed=1)
    (baseline,) = verify([VerifyRequest(Draft.chain([]), free, key=1, length=5)], logits[:1])
    wrong = (baseline.next_token + 1) % 6
    assert verify([VerifyRequest(Draft.chain([wrong]), free, key=1, length=5)], logits) == [baseline]


@pytest.mark.parametrize("node", [0, 1])
def test_the_vocabulary_size_of_every_q_is_checked(node: int) -> None:
    q = [Proposal(torch.full((64,), 1 / 64)), Proposal(torch.full((64,), 1 / 64))]
    q[node] = Proposal(torch.full((40,), 1 / 40))
    with pytest.raises(VocabularyMismatch, match="q has 40 tokens"):
        verify(
            [VerifyRequest(Draft.chain([1, 2], q=q), SamplingParams(), key=0, length=0)], torch.zeros(3, 64)
        )


def test_a_q_in_low_precision_raises() -> None:
    draft = Draft.chain([1], q=[Proposal(torch.full((4,), 0.25).bfloat16())])
    with pytest.raises(InvalidDraft, match="float32"):
        verify([VerifyRequest(draft, SamplingParams(), key=0, length=0)], torch.zeros(2, 4))


def test_a_token_sampled_twice_without_replacement_raises() -> None:
    q = Proposal(torch.full((4,), 0.25), replacement=False)
    draft = Draft(np.array([1, 1]), np.array([-1, -1]), np.ones(2, dtype=bool), {-1: q})
    logits = torch.tensor([[0.0, -50.0, 0.0, 0.0]]).repeat(3, 1)
    with pytest.raises(InvalidDraft, match="sampled twice"):
        verify([VerifyRequest(draft, SamplingParams(), key=0, length=0)], logits)


def test_a_q_is_not_used_for_another_request() -> None:
    q = Proposal(torch.full((4,), 0.25))
    stray = Draft(np.array([1]), np.array([-1]), np.ones(1, dtype=bool), {-1: q, 1: q})
    without = Draft(np.array([1]), np.array([-1]), np.ones(1, dtype=bool))
    with pytest.raises(InvalidDraft, match=r"request 1: .*no q"):
        verify(
            [VerifyRequest(each, SamplingParams(), key=0, length=0) for each in (stray, without)],
            torch.zeros(4, 4),
        )


@pytest.mark.parametrize("key", [2**63, 2**64 - 1, -(2**63), -1])
def test_every_seed_that_torch_accepts_is_a_valid_key(key: int) -> None:
    (verdict,) = verify(
        [VerifyRequest(Draft.chain([]), SamplingParams(seed=1), key=key, length=1)], torch.zeros(1, 50)
    )
    assert 0 <= verdict.next_token < 50


@pytest.mark.parametrize("lenience", [0.0, -0.5, 1.5, float("nan")])
def test_lenience_out_of_range_raises(lenience: float) -> None:
    with pytest.raises(InvalidSampling, match="lenience is"):
        VerifyRequest(Draft.chain([]), SamplingParams(), key=0, length=0, lenience=lenience)


def test_nan_logits_raise_with_lenience() -> None:
    each = VerifyRequest(Draft.chain([]), SamplingParams(temperature=0), key=0, length=0, lenience=0.5)
    with pytest.raises(InvalidDistribution):
        verify([each], torch.full((1, 4), float("nan")))


def test_a_history_copies_its_tokens() -> None:
    output = [1]
    history = TokenHistory([0], output)
    output.append(2)
    assert history.output == (1,)


def random_draft(kind: str, rng: np.random.Generator, size: int) -> Draft:
    """A chain or tree of up to 40 nodes; the first node is sampled, the others are sampled or chosen."""
    num = int(rng.integers(1, 40))
    reach = 1 if kind == "chain" else 6
    parents = [int(rng.integers(max(-1, node - reach), node)) for node in range(num)]
    q = {}
    for parent in set(parents):
        weights = torch.from_numpy(rng.random(size).astype(np.float32) + 0.1)
        q[parent] = Proposal(weights / weights.sum(), bool(rng.random() < 0.5))
    tokens: list[int] = []
    sampled: list[bool] = []
    for node, parent in enumerate(parents):
        used = {tokens[i] for i in range(node) if parents[i] == parent and sampled[i]}
        left = [x for x in range(size) if q[parent].replacement or x not in used]
        sampled.append(node == 0 or bool(rng.random() < 0.8))
        tokens.append(int(rng.choice(left)))
    return Draft(np.array(tokens), np.array(parents), np.array(sampled), q)


@pytest.mark.parametrize(
    ("kind", "verifier"), [("chain", "rejection"), ("chain", "block"), ("tree", "rejection")]
)
def test_the_target_distribution_on_demand_gives_the_verdicts_of_precomputed_p(
    kind: str, verifier: str
) -> None:
    """Long chains and wide trees, beyond the prefetched rows and the stride."""
    rng = np.random.default_rng(5)
    size, num = 30, 150
    sampling = SamplingParams(temperature=0.3)
    requests = [VerifyRequest(random_draft(kind, rng, size), sampling, key, 7) for key in range(num)]
    forest = Forest.pack([each.draft for each in requests])
    rows = np.arange(forest.num_rows)
    logits = torch.randn(len(rows), size, generator=torch.Generator().manual_seed(5)) * 0.01
    drafted = np.flatnonzero(forest.parent >= 0)
    logits[forest.parent[drafted], forest.tokens[drafted]] += 1.0
    settings = BatchSampling.of([sampling] * num)
    u, v = verification_noise(
        TargetDistribution(logits, rows, forest, settings, np.arange(num), np.full(num, 7), [])
    )
    whole = probabilities(logits, settings[forest.request_of(rows)])
    expected = (block_verify if verifier == "block" else rejection_sample)(forest, whole, u, v)
    verdicts = verify(requests, logits, verifier)  # type: ignore[arg-type]
    assert verdicts == expected
    assert max(len(verdict.accepted) for verdict in verdicts) > 8


def decode(
    model: Callable[[list[int]], torch.Tensor],
    sampling: SamplingParams,
    drafter: Callable[[list[int]], Draft],
    num_tokens: int,
) -> list[int]:
    """Generate through `verify`, with a model that maps tokens to next-token logits."""
    tokens = [1, 2, 3]
    while len(tokens) < 3 + num_tokens:
        draft = drafter(tokens)
        rows = [model(tokens)]
        for node in range(len(draft)):
            path = [int(draft.tokens[i]) for i in draft.path(node)]
            rows.append(model(tokens + path))
        history = TokenHistory(tokens[:3], tokens[3:])
        each = VerifyRequest(draft, sampling, key=sampling.seed or 0, length=len(tokens), history=history)
        tokens += verify([each], torch.stack(rows))[0].tokens(draft)
    return tokens[3 : 3 + num_tokens]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0),
        SamplingParams(seed=3),
        SamplingParams(temperature=0.8, top_p=0.95, seed=4),
        SamplingParams(
            temperature=1.2, top_k=5, min_p=0.02, seed=5, presence_penalty=0.5, frequency_penalty=0.3
        ),
        SamplingParams(temperature=0, repetition_penalty=1.5, bad_words=((4, 5), (6,)), logit_bias={7: 1.5}),
    ],
)
def test_the_output_of_a_model_is_identical_for_every_draft(sampling: SamplingParams) -> None:
    """Greedy and seeded, with wrong chains, wrong trees, and drafts that equal the baseline output."""
    weights = torch.randn(16, 16, 16, 16, generator=torch.Generator().manual_seed(0)) * 1.5

    def model(tokens: list[int]) -> torch.Tensor:
        first, second, third = tokens[-3:]
        return weights[first, second, third]

    rng = np.random.default_rng(0)

    def chain(tokens: list[int]) -> Draft:
        return Draft.chain(rng.integers(0, 16, 4))

    def tree(tokens: list[int]) -> Draft:
        return Draft(rng.integers(0, 16, 5), np.array([-1, -1, 0, 0, 1]), np.zeros(5, dtype=bool))

    baseline = decode(model, sampling, lambda tokens: Draft.chain([]), 24)
    right = decode(model, sampling, lambda tokens: Draft.chain(baseline[len(tokens) - 3 :][:6]), 24)
    assert right == baseline
    assert decode(model, sampling, chain, 24) == baseline
    assert decode(model, sampling, tree, 24) == baseline


@pytest.mark.parametrize("verifier", ["rejection", "block", "match"])
def test_sampled_draft_tokens_leave_the_distribution_of_the_first_token_unchanged(verifier: str) -> None:
    """Production noise and production p, 20,000 steps, chi-square test at level 0.001."""
    generator = torch.Generator().manual_seed(7)
    size, num_steps = 12, 20_000
    logits = torch.randn(3, size, generator=generator)
    q = torch.softmax(torch.randn(2, size, generator=generator), dim=-1)
    drafted = torch.stack(
        [torch.multinomial(q[i], num_steps, replacement=True, generator=generator) for i in range(2)], 1
    )
    requests = [
        VerifyRequest(
            Draft.chain(row, q=[Proposal(q[0]), Proposal(q[1])]),
            SamplingParams(temperature=0.9),
            key=i,
            length=5,
        )
        for i, row in enumerate(drafted.tolist())
    ]
    verdicts = verify(requests, logits.repeat(num_steps, 1), verifier)  # type: ignore[arg-type]
    first = [verdict.tokens(each.draft)[0] for each, verdict in zip(requests, verdicts, strict=True)]
    p = torch.softmax(logits[0].double() / 0.9, dim=-1).numpy()
    assert stats.chisquare(np.bincount(first, minlength=size), p * num_steps).pvalue > 1e-3


def test_the_distribution_test_detects_a_wrong_q() -> None:
    generator = torch.Generator().manual_seed(7)
    size, num_steps = 12, 20_000
    logits = torch.randn(2, size, generator=generator)
    q = torch.softmax(torch.randn(size, generator=generator), dim=-1)
    flat = Proposal(torch.full((size,), 1.0 / size))
    drafted = torch.multinomial(q, num_steps, replacement=True, generator=generator).tolist()
    requests = [
        VerifyRequest(Draft.chain([x], q=[flat]), SamplingParams(), key=i, length=5)
        for i, x in enumerate(drafted)
    ]
    verdicts = verify(requests, logits.repeat(num_steps, 1), "rejection")
    first = [verdict.tokens(each.draft)[0] for each, verdict in zip(requests, verdicts, strict=True)]
    p = torch.softmax(logits[0].double(), dim=-1).numpy()
    assert stats.chisquare(np.bincount(first, minlength=size), p * num_steps).pvalue < 1e-9


def test_lenient_greedy_verification_accepts_tokens_near_the_argmax() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.4, 0.1], [0.2, 0.2, 0.6]]))
    each = VerifyRequest(Draft.chain([1]), SamplingParams(temperature=0), key=0, length=0, lenience=0.7)
    assert verify([each], logits) == [Verdict((0,), 2)]
    strict = VerifyRequest(Draft.chain([1]), SamplingParams(temperature=0), key=0, length=0, lenience=0.9)
    assert verify([strict], logits) == [Verdict((), 0)]


def test_sampled_draft_tokens_merged_with_others_are_never_block_verified() -> None:
    """Whether the merged draft is a chain depends on sampled values; the choice of verifier must not."""
    q = Proposal(torch.full((4,), 0.25))
    draft = Draft.chain([1, 2], q=[q, q])
    for verifier in ("auto", "block"):
        assert method_for(VerifyRequest(draft, SamplingParams(), 1, 5), verifier) is Method.BLOCK
        assert (
            method_for(VerifyRequest(draft, SamplingParams(), 1, 5, can_block_verify=False), verifier)
            is Method.REJECTION
        )


@pytest.mark.parametrize("name", ["blok", "lenient", "", "BLOCK"])
def test_an_unknown_verifier_raises_instead_of_selecting_one(name: str) -> None:
    request = VerifyRequest(CHAIN, SamplingParams(), key=0, length=5)
    with pytest.raises(ConfigurationError, match=f"{name!r}.*'auto', 'match', 'rejection' or 'block'"):
        verify([request], torch.zeros(3, 2), name)  # type: ignore[arg-type]


@pytest.mark.parametrize(("old", "new"), [("follow", "match"), ("reject", "rejection")])
def test_a_deprecated_verifier_name_gives_the_verdicts_of_the_new_one(old: str, new: VerifierName) -> None:
    logits = torch.zeros(3, 2)
    requests = [VerifyRequest(CHAIN, SamplingParams(), key=key, length=5) for key in range(20)]
    with pytest.warns(DeprecationWarning, match=f"'{old}'.*'{new}'"):
        verdicts = verify(requests, logits.repeat(20, 1), old)  # type: ignore[arg-type]
    assert verdicts == verify(requests, logits.repeat(20, 1), new)
