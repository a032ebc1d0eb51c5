from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import theory
from forerun.core.exponential_race import exponential_race_rows

TABLE_1 = [
    (0.6, 2, 1.53, 1.96),
    (0.7, 3, 1.58, 2.53),
    (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69),
    (0.9, 2, 1.11, 2.71),
    (0.9, 10, 1.60, 6.86),
]


@pytest.mark.parametrize(("alpha", "gamma", "operations", "speed"), TABLE_1)
def test_table_1_of_the_paper(alpha: float, gamma: int, operations: float, speed: float) -> None:
    assert round(theory.operations(alpha, gamma), 2) == operations
    assert round(theory.speedup(alpha, gamma), 2) == speed


@pytest.mark.parametrize(("alpha", "accepted"), [(0.5, 0.94), (0.7, 1.77), (0.9, 3.10)])
def test_expected_accepted_draft_tokens_of_four(alpha: float, accepted: float) -> None:
    """Values of the formula; an earlier document printed 2.05 and 3.28."""
    assert round(theory.expected_accepted(alpha, 4), 2) == accepted


def test_equation_1_holds_at_its_limits() -> None:
    assert theory.expected_tokens(0.0, 7) == 1.0
    assert theory.expected_tokens(1.0, 7) == 8.0
    assert theory.expected_tokens(0.5, 0) == 1.0


@given(st.floats(0, 0.99), st.integers(0, 20))
def test_equation_1_is_its_closed_form(alpha: float, gamma: int) -> None:
    assert theory.expected_tokens(alpha, gamma) == pytest.approx((1 - alpha ** (gamma + 1)) / (1 - alpha))


def test_acceptance_is_the_overlap_of_p_and_q() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    assert theory.acceptance(p, q) == pytest.approx(0.6)
    assert theory.acceptance(p, q, lenience=0.5) == pytest.approx(0.2 + 0.2 + 0.4)


def enumerated_matches(p: list[Fraction], q: list[Fraction]) -> list[Fraction]:
    """P-MinHash's collision probabilities (Moulton and Jiang 2018), summed over all pairs of tokens."""
    tokens = range(len(p))
    return [
        1 / sum((max(p[y] / p[x], q[y] / q[x]) for y in tokens), Fraction(0))
        if p[x] and q[x]
        else Fraction(0)
        for x in tokens
    ]


PAIRS = [
    ([5, 3, 2], [2, 2, 6]),
    ([4, 0, 3, 1], [1, 5, 2, 0]),
    ([1, 1, 1, 1], [1, 1, 1, 1]),
    ([9, 1, 0], [0, 1, 9]),
    ([20, 10, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 10, 20]),
]


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_coupled_matches_equal_their_enumeration(p: list[int], q: list[int]) -> None:
    expected = enumerated_matches(*([Fraction(n, sum(row)) for n in row] for row in (p, q)))
    matches = theory.coupled_matches(np.array(p) / sum(p), np.array(q) / sum(q))
    assert matches.tolist() == pytest.approx([float(each) for each in expected], abs=1e-12)


def simulated_matches(p: list[int], q: list[int], salt: int = 0) -> np.ndarray:
    """Share of 40,000 positions at which both races select a token; a salt gives q's race other clocks."""
    num, positions = 40_000, np.arange(40_000)
    rows = [torch.tensor([row], dtype=torch.float32).expand(num, -1).contiguous() for row in (p, q)]
    target, draft = (
        exponential_race_rows(row, np.full(num, key), positions)
        for row, key in zip(rows, (7, 7 + salt), strict=True)
    )
    return np.bincount(target[target == draft], minlength=len(p)) / num


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_races_with_shared_clocks_match_as_often_as_the_theory_states(p: list[int], q: list[int]) -> None:
    """Five standard deviations per token: a false alarm rate below 1e-4 over all pairs."""
    assert _agrees(simulated_matches(p, q), theory.coupled_matches(np.array(p), np.array(q)))


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_the_simulation_detects_salted_clocks(p: list[int], q: list[int]) -> None:
    expected = theory.coupled_matches(np.array(p), np.array(q))
    independent = np.array(p) / sum(p) * np.array(q) / sum(q)
    assert not _agrees(simulated_matches(p, q, salt=1), expected)
    assert _agrees(simulated_matches(p, q, salt=1), independent)


def _agrees(measured: np.ndarray, expected: np.ndarray) -> bool:
    deviation = np.sqrt(expected * (1 - expected) / 40_000)
    return bool((np.abs(measured - expected) <= 5 * deviation + 1e-12).all())


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=12))
def test_coupled_acceptance_lies_between_its_bound_and_rejection_sampling(
    weights: list[tuple[float, float]],
) -> None:
    p, q = np.array(weights).T + 1e-6
    p, q = p / p.sum(), q / q.sum()
    overlap = theory.acceptance(p, q)
    matches = theory.coupled_matches(p, q)
    assert overlap / (2 - overlap) - 1e-9 <= matches.sum() <= overlap + 1e-9
    assert (matches <= np.minimum(p, q) + 1e-12).all()


@given(st.floats(0.01, 0.99), st.floats(0.001, 0.5))
def test_best_gamma_maximises_the_speedup(alpha: float, c: float) -> None:
    best = theory.best_gamma(alpha, c, max_gamma=64)
    speedups = [theory.speedup(alpha, gamma, c) for gamma in range(65)]
    assert speedups[best] == pytest.approx(max(speedups))
    assert (best > 0) == (alpha > c) or abs(alpha - c) < 1e-9


def enumerated_steps(factors: list[Fraction], gamma: int) -> Fraction:
    """The expected number of steps, over all outcomes of every step."""
    if not factors:
        return Fraction(0)
    total, reached = Fraction(1), Fraction(1)
    drafted = min(gamma, len(factors) - 1)
    for accepted in range(drafted + 1):
        rejected = 1 - factors[accepted] if accepted < drafted else Fraction(1)
        total += reached * rejected * enumerated_steps(factors[accepted + 1 :], gamma)
        reached *= factors[accepted]
    return total


@pytest.mark.parametrize("gamma", [0, 1, 2, 3, 8])
@pytest.mark.parametrize(
    "numerators", [[1], [3, 1], [0, 4, 2, 3, 1], [4, 4, 4, 4], [0, 0, 0], [1, 3, 2, 2, 4]]
)
def test_expected_steps_equal_their_enumeration(numerators: list[int], gamma: int) -> None:
    factors = [Fraction(n, 4) for n in numerators]
    expected = float(enumerated_steps(factors, gamma))
    assert theory.expected_steps([float(each) for each in factors], gamma) == pytest.approx(expected)


def test_expected_steps_agree_with_equation_1_for_equal_factors() -> None:
    """Beyond the end of an output, where the last draft is cut off."""
    tokens_per_step = 20_000 / theory.expected_steps([0.7] * 20_000, 4)
    assert tokens_per_step == pytest.approx(theory.expected_tokens(0.7, 4), rel=1e-3)


@pytest.mark.parametrize(("p", "q"), PAIRS)
@pytest.mark.parametrize("lenience", [1.0, 0.5, 0.1])
def test_lenient_distance_equals_its_enumeration(p: list[int], q: list[int], lenience: float) -> None:
    """The distribution of a step with one draft token, over the draft token and the residual."""
    exact_p, exact_q = ([Fraction(n, sum(row)) for n in row] for row in (p, q))
    factor = Fraction(lenience).limit_denominator(10)
    accepted = [
        min(Fraction(1), p_x / (factor * q_x)) * q_x if q_x else Fraction(0)
        for p_x, q_x in zip(exact_p, exact_q, strict=True)
    ]
    residual = [max(p_x - q_x, Fraction(0)) for p_x, q_x in zip(exact_p, exact_q, strict=True)]
    left = 1 - sum(accepted)
    emitted = [
        a + (left * r / sum(residual) if sum(residual) else Fraction(0))
        for a, r in zip(accepted, residual, strict=True)
    ]
    assert sum(emitted) == 1
    distance = sum(abs(e - p_x) for e, p_x in zip(emitted, exact_p, strict=True)) / 2
    found = theory.lenient_distance(np.array(p) / sum(p), np.array(q) / sum(q), lenience)
    assert found == pytest.approx(float(distance), abs=1e-12)
    assert lenience < 1 or distance == 0


@given(st.floats(0, 0.99), st.floats(0.001, 0.5))
def test_no_fixed_draft_length_beats_the_oracle(alpha: float, c: float) -> None:
    fixed = theory.speedup(alpha, theory.best_gamma(alpha, c), c)
    assert theory.oracle_speedup(alpha, c) >= fixed - 1e-9


def test_the_oracle_gains_about_60_percent() -> None:
    """Section 3.5: up to about 60 % over the best fixed length, for typical alpha and c."""
    gains = [
        theory.oracle_speedup(alpha, c) / theory.speedup(alpha, theory.best_gamma(alpha, c), c)
        for alpha in (0.5, 0.6, 0.7, 0.8, 0.9)
        for c in (0.01, 0.02, 0.05, 0.1)
    ]
    assert 1.5 < max(gains) < 1.7
