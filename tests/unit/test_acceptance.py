"""Properties of the acceptance test and the verifiers in float32, over random and extreme numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forerun.core.acceptance import accepts, inverse_cdf_reference, residual, sample_inverse_cdf
from forerun.core.block_verification import block_verify
from forerun.core.draft_forest import Forest
from forerun.core.lenient_verification import lenient, lenient_greedy
from forerun.core.rejection_sampling import rejection_sample
from forerun.errors import InvalidDistribution
from forerun.types import Draft, Proposal, Verdict

EXTREME = st.sampled_from([0.0, 0.0, 1e-45, 1e-38, 1e-20, 1e-7, 0.5, 1.0, 1.0, 3.0])


@st.composite
def distributions(draw: st.DrawFn, size: int) -> torch.Tensor:
    """Distributions with zeros, ties, point masses and entries down to the smallest float32."""
    kind = draw(st.sampled_from(["extreme", "uniform", "point", "random"]))
    if kind == "uniform":
        weights = np.ones(size, dtype=np.float32)
    elif kind == "point":
        weights = np.zeros(size, dtype=np.float32)
        weights[draw(st.integers(0, size - 1))] = 1
    elif kind == "extreme":
        weights = np.array([draw(EXTREME) for _ in range(size)], dtype=np.float32)
        weights[draw(st.integers(0, size - 1))] = 1
    else:
        weights = draw(hnp.arrays(np.float32, size, elements=st.floats(0, 1, width=32))) + np.float32(1e-3)
    tensor = torch.from_numpy(weights)
    return tensor / tensor.sum()


@st.composite
def batches(
    draw: st.DrawFn, *, chains: bool = False
) -> tuple[list[Draft], torch.Tensor, np.ndarray, np.ndarray]:
    """Random trees of sampled and chosen draft tokens, their p, and the uniforms u and v."""
    size = draw(st.integers(2, 6))
    drafts, rows = [], []
    for _ in range(draw(st.integers(1, 4))):
        num = draw(st.integers(0, 6))
        parents = [node - 1 if chains else draw(st.integers(-1, node - 1)) for node in range(num)]
        replacement = draw(st.booleans())
        q = {parent: Proposal(draw(distributions(size)), replacement) for parent in set(parents)}
        tokens: list[int] = []
        sampled: list[bool] = []
        for node, parent in enumerate(parents):
            before = {tokens[i] for i in range(node) if parents[i] == parent and sampled[i]}
            possible = [x for x in range(size) if q[parent].probs[x] > 0 and (replacement or x not in before)]
            is_sampled = draw(st.booleans()) and bool(possible)
            sampled.append(is_sampled)
            tokens.append(draw(st.sampled_from(possible if is_sampled else list(range(size)))))
        drafts.append(
            Draft(
                np.array(tokens, dtype=np.int64),
                np.array(parents, dtype=np.int64),
                np.array(sampled, dtype=bool),
                q,
            )
        )
        rows += [draw(distributions(size)) for _ in range(num + 1)]
    uniform = st.one_of(st.just(0.0), st.just(1 - 2.0**-53), st.floats(0, 1, exclude_max=True))
    u = np.array([draw(uniform) for _ in rows])
    v = np.array([draw(uniform) for _ in drafts])
    return drafts, torch.stack(rows), u, v


def check_verdicts(drafts: list[Draft], p: torch.Tensor, verdicts: list[Verdict]) -> None:
    """Accepted nodes form a path from the root, and every committed token has positive probability."""
    row = 0
    for draft, verdict in zip(drafts, verdicts, strict=True):
        here = -1
        for node in verdict.accepted:
            assert draft.parents[node] == here
            assert p[row + here + 1, draft.tokens[node]] > 0
            here = node
        assert p[row + here + 1, verdict.next_token] > 0
        row += len(draft) + 1


@settings(deadline=None, max_examples=120)
@given(batches())
def test_rejection_sampling_emits_only_tokens_of_positive_probability(
    batch: tuple[list[Draft], torch.Tensor, np.ndarray, np.ndarray],
) -> None:
    drafts, p, u, v = batch
    check_verdicts(drafts, p, rejection_sample(Forest.pack(drafts), p.clone(), u, v))


@settings(deadline=None, max_examples=80)
@given(batches(chains=True))
def test_block_verification_emits_only_tokens_of_positive_probability(
    batch: tuple[list[Draft], torch.Tensor, np.ndarray, np.ndarray],
) -> None:
    drafts, p, u, v = batch
    check_verdicts(drafts, p, block_verify(Forest.pack(drafts), p.clone(), u, v))


@settings(deadline=None, max_examples=100)
@given(batches(), st.floats(0.01, 1))
def test_lenient_verification_emits_only_tokens_of_positive_probability(
    batch: tuple[list[Draft], torch.Tensor, np.ndarray, np.ndarray], lenience: float
) -> None:
    drafts, p, u, v = batch
    check_verdicts(drafts, p, lenient(Forest.pack(drafts), p.clone(), u, v, np.full(len(drafts), lenience)))
    check_verdicts(drafts, p, lenient_greedy(Forest.pack(drafts), p.clone(), np.full(len(drafts), lenience)))


@settings(deadline=None, max_examples=100)
@given(batches())
def test_requests_of_a_batch_are_verified_independently(
    batch: tuple[list[Draft], torch.Tensor, np.ndarray, np.ndarray],
) -> None:
    drafts, p, u, v = batch
    together = rejection_sample(Forest.pack(drafts), p.clone(), u, v)
    row = 0
    for i, draft in enumerate(drafts):
        rows = slice(row, row + len(draft) + 1)
        assert rejection_sample(Forest.pack([draft]), p[rows].clone(), u[rows], v[i : i + 1]) == [together[i]]
        row += len(draft) + 1


@settings(deadline=None, max_examples=200)
@given(st.integers(2, 8).flatmap(lambda n: st.tuples(distributions(n), distributions(n))))
def test_a_residual_is_finite_and_never_negative(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    p, q = (each[None] for each in pair)
    for p_mass, q_mass in ((1.0, 1.0), (0.25, 1.0), (1.0, 1e-6)):
        rest = residual(p, list(q), np.array([p_mass]), np.array([q_mass]))
        assert torch.isfinite(rest).all()
        assert (rest >= 0).all()
        assert (rest[p == 0] == 0).all()


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 5000), st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_compiled_inverse_cdf_sampling_equals_the_reference(size: int, seed: int, v: float) -> None:
    """On dyadic weights every sum is exact, so both agree to the bit."""
    weights = torch.randint(0, 4, (1, size), generator=torch.Generator().manual_seed(seed)).float() / 64
    weights[0, seed % size] += 1 / 64
    numbers = np.array([round(v * 2**20) % 2**20 / 2**20])
    assert sample_inverse_cdf(weights, numbers).tolist() == inverse_cdf_reference(weights, numbers).tolist()


@pytest.mark.parametrize("v", [0.0, 0.5, 1 - 2.0**-53])
def test_a_token_of_weight_zero_is_never_sampled(v: float) -> None:
    weights = torch.zeros(1, 3000)
    weights[0, [5, 2999 - 7]] = torch.tensor([1e-30, 3e-30])
    assert sample_inverse_cdf(weights, np.array([v])).tolist() in ([5], [2992])


@pytest.mark.parametrize("row", [[0.0, 0.0], [float("nan"), 1.0]])
def test_sampling_from_a_row_without_mass_raises(row: list[float]) -> None:
    with pytest.raises(InvalidDistribution, match="NaN or all 0"):
        sample_inverse_cdf(torch.tensor([row]), np.array([0.5]))


def test_a_draft_token_is_accepted_whenever_p_is_at_least_q() -> None:
    almost_one = 1 - 2.0**-53
    for x in (1e-38, 1e-7, 0.3, 1.0):
        assert accepts(np.float64(almost_one), np.float64(x), np.float64(x))


def test_a_draft_token_is_accepted_where_rounding_leaves_no_residual() -> None:
    """p and q differ only by rounding: a rejection would leave no residual to sample from."""
    q = torch.tensor([0.5, 0.5])
    p = torch.tensor([[0.49999997, 0.5], [1.0, 0.0]])
    draft = Draft.chain([0], q=[Proposal(q)])
    verdict = rejection_sample(Forest.pack([draft]), p, np.array([0.0, 1 - 2.0**-53]), np.array([0.5]))
    assert verdict == [Verdict((0,), 0)]


def test_a_draft_token_of_target_probability_zero_is_rejected_even_without_residual() -> None:
    """p is 0 at the draft token and nowhere above q: the token is rejected and p is unchanged."""
    q = torch.tensor([0.5, 0.5, 1e-12])
    p = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    draft = Draft.chain([2], q=[Proposal(q)])
    (verdict,) = rejection_sample(Forest.pack([draft]), p, np.array([0.0, 0.5]), np.array([0.7]))
    assert verdict == Verdict((), 1)


def test_a_sample_that_rounds_up_to_the_total_is_the_last_token_with_weight() -> None:
    weights = torch.full((1, 5000), 0.1)
    weights[0, 4990:] = 0.0
    assert sample_inverse_cdf(weights, np.array([1.0])).tolist() == [4989]
    assert inverse_cdf_reference(weights, np.array([1.0])).tolist() == [4989]


def test_sixty_four_rejected_siblings_do_not_underflow() -> None:
    size = 70
    q = torch.softmax(-torch.arange(size, dtype=torch.float32), dim=-1)
    p = torch.full((65, size), 1.0 / size)
    tokens = np.arange(64)
    draft = Draft(tokens, np.full(64, -1), np.ones(64, dtype=bool), {-1: Proposal(q, replacement=False)})
    (verdict,) = rejection_sample(Forest.pack([draft]), p, np.full(65, 1 - 2.0**-53), np.array([0.5]))
    assert verdict.accepted == () or verdict.accepted[0] < 64
    assert 0 <= verdict.next_token < size


def test_block_verification_emits_at_least_as_many_tokens_as_rejection_sampling() -> None:
    """Theorem of Sun et al., on the exact output distribution of both."""
    from forerun.audit.exact.enumeration import EnumerationCase, StepModel, enumerate_steps, sample_draft
    from forerun.audit.exact.toy_models import CHAINS, ToyModel

    for seed in range(6):
        cases = [EnumerationCase(ToyModel(3, seed), (CHAINS[1],))]
        mean = {}
        for verifier in (rejection_sample, block_verify):
            (emitted,) = enumerate_steps(StepModel(verifier, sample_draft), cases)
            mean[verifier] = sum(
                (Fraction(len(e)) * m for e, m in emitted.probabilities.items()), Fraction(0)
            )
        assert mean[block_verify] >= mean[rejection_sample]
