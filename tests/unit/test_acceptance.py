"""Properties of the decisions and verifiers in float32, over random and hostile numbers."""

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
from forerun.core.lenient import lenient, lenient_greedy
from forerun.core.rejection_sampling import rejection_sample
from forerun.errors import InvalidDistribution
from forerun.types import Draft, Proposal, Verdict

HOSTILE = st.sampled_from([0.0, 0.0, 1e-45, 1e-38, 1e-20, 1e-7, 0.5, 1.0, 1.0, 3.0])


@st.composite
def laws(draw: st.DrawFn, size: int) -> torch.Tensor:
    """Distributions with zeros, ties, point masses and entries as small as float32 has them."""
    kind = draw(st.sampled_from(["hostile", "uniform", "point", "random"]))
    if kind == "uniform":
        weights = np.ones(size, dtype=np.float32)
    elif kind == "point":
        weights = np.zeros(size, dtype=np.float32)
        weights[draw(st.integers(0, size - 1))] = 1
    elif kind == "hostile":
        weights = np.array([draw(HOSTILE) for _ in range(size)], dtype=np.float32)
        weights[draw(st.integers(0, size - 1))] = 1
    else:
        weights = draw(hnp.arrays(np.float32, size, elements=st.floats(0, 1, width=32))) + np.float32(1e-3)
    law = torch.from_numpy(weights)
    return law / law.sum()


@st.composite
def batches(
    draw: st.DrawFn, *, chains: bool = False
) -> tuple[list[Draft], torch.Tensor, np.ndarray, np.ndarray]:
    """Random trees with sampled and chosen guesses, their p, and the numbers that judge them."""
    size = draw(st.integers(2, 6))
    drafts, rows = [], []
    for _ in range(draw(st.integers(1, 4))):
        num = draw(st.integers(0, 6))
        parents = [node - 1 if chains else draw(st.integers(-1, node - 1)) for node in range(num)]
        replacement = draw(st.booleans())
        q = {parent: Proposal(draw(laws(size)), replacement) for parent in set(parents)}
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
        rows += [draw(laws(size)) for _ in range(num + 1)]
    dice = st.one_of(st.just(0.0), st.just(1 - 2.0**-53), st.floats(0, 1, exclude_max=True))
    u = np.array([draw(dice) for _ in rows])
    v = np.array([draw(dice) for _ in drafts])
    return drafts, torch.stack(rows), u, v


def demand_sense(drafts: list[Draft], p: torch.Tensor, verdicts: list[Verdict]) -> None:
    """Kept guesses form a path from the root, and everything said has positive probability."""
    row = 0
    for draft, verdict in zip(drafts, verdicts, strict=True):
        here = -1
        for node in verdict.accepted:
            assert draft.parents[node] == here
            assert p[row + here + 1, draft.tokens[node]] > 0
            here = node
        assert p[row + here + 1, verdict.next_token] > 0
        row += len(draft) + 1


@settings(deadline=None, max_examples=300)
@given(batches())
def test_reject_says_only_what_the_target_can_say(
    batch: tuple[list[Draft], torch.Tensor, np.ndarray, np.ndarray],
) -> None:
    drafts, p, u, v = batch
    demand_sense(drafts, p, rejection_sample(Forest.pack(drafts), p.clone(), u, v))


@settings(deadline=None, max_examples=200)
@given(batches(chains=True))
def test_block_says_only_what_the_target_can_say(
    batch: tuple[list[Draft], torch.Tensor, np.ndarray, np.ndarray],
) -> None:
    drafts, p, u, v = batch
    demand_sense(drafts, p, block_verify(Forest.pack(drafts), p.clone(), u, v))


@settings(deadline=None, max_examples=100)
@given(batches(), st.floats(0.01, 1))
def test_lenient_says_only_what_the_target_can_say(
    batch: tuple[list[Draft], torch.Tensor, np.ndarray, np.ndarray], lenience: float
) -> None:
    drafts, p, u, v = batch
    demand_sense(drafts, p, lenient(Forest.pack(drafts), p.clone(), u, v, np.full(len(drafts), lenience)))
    demand_sense(drafts, p, lenient_greedy(Forest.pack(drafts), p.clone(), np.full(len(drafts), lenience)))


@settings(deadline=None, max_examples=100)
@given(batches())
def test_requests_do_not_touch_each_other(
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
@given(st.integers(2, 8).flatmap(lambda n: st.tuples(laws(n), laws(n))))
def test_a_residual_is_finite_and_never_negative(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    p, q = (law[None] for law in pair)
    for p_mass, q_mass in ((1.0, 1.0), (0.25, 1.0), (1.0, 1e-6)):
        left = residual(p, list(q), np.array([p_mass]), np.array([q_mass]))
        assert torch.isfinite(left).all()
        assert (left >= 0).all()
        assert (left[p == 0] == 0).all()


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 5000), st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_the_compiled_pick_is_the_pick_as_stated(size: int, seed: int, v: float) -> None:
    """On dyadic weights every sum is exact, so both must agree to the bit."""
    weights = torch.randint(0, 4, (1, size), generator=torch.Generator().manual_seed(seed)).float() / 64
    weights[0, seed % size] += 1 / 64
    numbers = np.array([round(v * 2**20) % 2**20 / 2**20])
    assert sample_inverse_cdf(weights, numbers).tolist() == inverse_cdf_reference(weights, numbers).tolist()


@pytest.mark.parametrize("v", [0.0, 0.5, 1 - 2.0**-53])
def test_a_token_without_weight_is_never_picked(v: float) -> None:
    weights = torch.zeros(1, 3000)
    weights[0, [5, 2999 - 7]] = torch.tensor([1e-30, 3e-30])
    assert sample_inverse_cdf(weights, np.array([v])).tolist() in ([5], [2992])


@pytest.mark.parametrize("row", [[0.0, 0.0], [float("nan"), 1.0]])
def test_nothing_to_draw_from_is_an_error(row: list[float]) -> None:
    with pytest.raises(InvalidDistribution, match="nothing to draw from"):
        sample_inverse_cdf(torch.tensor([row]), np.array([0.5]))


def test_a_guess_stands_whenever_p_is_at_least_q() -> None:
    almost_one = 1 - 2.0**-53
    for x in (1e-38, 1e-7, 0.3, 1.0):
        assert accepts(np.float64(almost_one), np.float64(x), np.float64(x))


def test_a_vanishing_residual_keeps_the_guess() -> None:
    """p and q differ by rounding alone: refusing would leave nothing to say."""
    q = torch.tensor([0.5, 0.5])
    p = torch.tensor([[0.49999997, 0.5], [1.0, 0.0]])
    draft = Draft.chain([0], q=[Proposal(q)])
    verdict = rejection_sample(Forest.pack([draft]), p, np.array([0.0, 1 - 2.0**-53]), np.array([0.5]))
    assert verdict == [Verdict((0,), 0)]


def test_a_forbidden_guess_is_refused_even_where_rounding_leaves_nothing() -> None:
    """p is 0 at the guess and nowhere above q: the guess goes, and p stays as it is."""
    q = torch.tensor([0.5, 0.5, 1e-12])
    p = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    draft = Draft.chain([2], q=[Proposal(q)])
    (verdict,) = rejection_sample(Forest.pack([draft]), p, np.array([0.0, 0.5]), np.array([0.7]))
    assert verdict == Verdict((), 1)


def test_a_pick_that_rounds_up_to_the_total_is_the_last_token_with_weight() -> None:
    weights = torch.full((1, 5000), 0.1)
    weights[0, 4990:] = 0.0
    assert sample_inverse_cdf(weights, np.array([1.0])).tolist() == [4989]
    assert inverse_cdf_reference(weights, np.array([1.0])).tolist() == [4989]


def test_sixty_four_refused_siblings_do_not_underflow() -> None:
    size = 70
    q = torch.softmax(-torch.arange(size, dtype=torch.float32), dim=-1)
    p = torch.full((65, size), 1.0 / size)
    tokens = np.arange(64)
    draft = Draft(tokens, np.full(64, -1), np.ones(64, dtype=bool), {-1: Proposal(q, replacement=False)})
    (verdict,) = rejection_sample(Forest.pack([draft]), p, np.full(65, 1 - 2.0**-53), np.array([0.5]))
    assert verdict.accepted == () or verdict.accepted[0] < 64
    assert 0 <= verdict.next_token < size


def test_block_keeps_at_least_as_much_as_reject_on_average() -> None:
    """Theorem of Sun et al., on the exact law of both."""
    from forerun.audit.exact.enumeration import EnumerationCase, StepModel, draw_tokens, play_out
    from forerun.audit.exact.toy_models import CHAINS, ToyModel

    for seed in range(6):
        cases = [EnumerationCase(ToyModel(3, seed), (CHAINS[1],))]
        mean = {}
        for verifier in (rejection_sample, block_verify):
            (emitted,) = play_out(StepModel(verifier, draw_tokens), cases)
            mean[verifier] = sum((Fraction(len(e)) * m for e, m in emitted.law.items()), Fraction(0))
        assert mean[block_verify] >= mean[rejection_sample]
