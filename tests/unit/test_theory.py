from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import theory

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


@given(st.floats(0.01, 0.99), st.floats(0.001, 0.5))
def test_best_gamma_maximises_the_speedup(alpha: float, c: float) -> None:
    best = theory.best_gamma(alpha, c, max_gamma=64)
    speedups = [theory.speedup(alpha, gamma, c) for gamma in range(65)]
    assert speedups[best] == pytest.approx(max(speedups))
    assert (best > 0) == (alpha > c) or abs(alpha - c) < 1e-9
