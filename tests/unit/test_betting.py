"""Bets are fair for every distribution in the epsilon ball: a proof in fractions, and its sabotaged twin."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from forerun.audit.sampled.betting import log_growth, log_joint_wealth, log_mean_wealth, payoff

EPSILONS = (Fraction(1, 100), Fraction(1, 10), Fraction(1, 4))


def distributions(parts: int, outcomes: int = 3) -> Iterator[np.ndarray]:
    for counts in product(range(parts + 1), repeat=outcomes):
        if sum(counts) == parts:
            yield np.array([Fraction(count, parts) for count in counts], dtype=object)


def distance(p: np.ndarray, q: np.ndarray) -> Fraction:
    return Fraction(sum(abs(p - q)) / 2)


def largest_mean(p: np.ndarray, payoffs: np.ndarray, epsilon: Fraction) -> Fraction:
    """The largest expected payoff within epsilon of p: mass moves from the lowest payoffs to the highest."""
    moved_p, top = p.copy(), int(np.argmax(payoffs))
    remaining = epsilon
    for outcome in np.argsort(payoffs, kind="stable"):
        moved = min(remaining, moved_p[outcome])
        moved_p[outcome] -= moved
        moved_p[top] += moved
        remaining -= moved
    return Fraction(sum(moved_p * payoffs))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_largest_expected_payoff_in_the_epsilon_ball_is_one(epsilon: Fraction) -> None:
    for p, q in product(distributions(6), distributions(6)):
        payoffs = payoff(p, q, epsilon)
        if distance(p, q) > epsilon:
            assert largest_mean(p, payoffs, epsilon) == 1
            assert sum(q * payoffs) > 1  # a bet on the true distribution gains
        else:
            assert all(payoffs == 1)


def test_an_unclipped_payoff_is_not_fair() -> None:
    """The sabotaged twin: a payoff of q/p, as if p were known exactly."""
    caught = 0
    for p, q in product(distributions(6), distributions(6)):
        if all(p > 0) and distance(p, q) > EPSILONS[1]:
            caught += largest_mean(p, q / p, EPSILONS[1]) > 1
    assert caught > 100


def test_floats_agree_with_fractions() -> None:
    for p, q in product(distributions(5, 4), distributions(5, 4)):
        exact = payoff(p, q, Fraction(1, 8)).astype(float)
        rough = payoff(p.astype(float), q.astype(float), 0.125)
        assert np.allclose(exact, rough)


def test_stakes_are_shares_of_wealth_and_vary_fastest() -> None:
    growth = log_growth(np.array([[2.0, 0.0], [1.0, 3.0]]))
    assert growth.shape == (8, 2)
    assert np.allclose(np.exp(growth[0]), [1.9, 0.1])
    assert np.allclose(np.exp(growth[4]), [1.0, 2.8])


def test_joint_wealth_is_the_mean_over_bettors() -> None:
    assert log_mean_wealth([0.0, np.log(3.0)]) == pytest.approx(np.log(2.0))
    assert log_mean_wealth([-np.inf, -np.inf]) == -np.inf
    logs = np.log(np.array([[2.0, 4.0], [1.0, 3.0]]))
    assert log_joint_wealth(logs) == pytest.approx(np.log((2.5 + 7.0) / 2))
