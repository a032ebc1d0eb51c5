"""Bets are fair to every law in the ball, proved in fractions; and the proof can fail."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from forerun.audit.sampled.betting import joint_wealth, payoff, staked, wealth

EPSILONS = (Fraction(1, 100), Fraction(1, 10), Fraction(1, 4))


def laws(parts: int, outcomes: int = 3) -> Iterator[np.ndarray]:
    for counts in product(range(parts + 1), repeat=outcomes):
        if sum(counts) == parts:
            yield np.array([Fraction(count, parts) for count in counts], dtype=object)


def distance(p: np.ndarray, q: np.ndarray) -> Fraction:
    return Fraction(sum(abs(p - q)) / 2)


def worst(p: np.ndarray, paid: np.ndarray, epsilon: Fraction) -> Fraction:
    """The largest expected payoff over all laws within epsilon: mass moves from the least paid upwards."""
    law, top = p.copy(), int(np.argmax(paid))
    left = epsilon
    for outcome in np.argsort(paid, kind="stable"):
        moved = min(left, law[outcome])
        law[outcome] -= moved
        law[top] += moved
        left -= moved
    return Fraction(sum(law * paid))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_no_law_in_the_ball_wins_and_the_worst_breaks_even(epsilon: Fraction) -> None:
    for p, q in product(laws(6), laws(6)):
        paid = payoff(p, q, epsilon)
        if distance(p, q) > epsilon:
            assert worst(p, paid, epsilon) == 1
            assert sum(q * paid) > 1  # who bets on the right law wins
        else:
            assert all(paid == 1)


def test_a_bet_without_limits_would_be_caught() -> None:
    """The sabotaged twin: paid q/p, as if p were known exactly."""
    caught = 0
    for p, q in product(laws(6), laws(6)):
        if all(p > 0) and distance(p, q) > EPSILONS[1]:
            caught += worst(p, q / p, EPSILONS[1]) > 1
    assert caught > 100


def test_floats_say_what_fractions_say() -> None:
    for p, q in product(laws(5, 4), laws(5, 4)):
        exact = payoff(p, q, Fraction(1, 8)).astype(float)
        rough = payoff(p.astype(float), q.astype(float), 0.125)
        assert np.allclose(exact, rough)


def test_stakes_are_shares_of_wealth_in_the_order_of_bets() -> None:
    grown = staked(np.array([[2.0, 0.0], [1.0, 3.0]]))
    assert grown.shape == (8, 2)
    assert np.allclose(np.exp(grown[0]), [1.9, 0.1])
    assert np.allclose(np.exp(grown[4]), [1.0, 2.8])


def test_wealth_is_the_mean_of_what_bettors_own() -> None:
    assert wealth([0.0, np.log(3.0)]) == pytest.approx(np.log(2.0))
    assert wealth([-np.inf, -np.inf]) == -np.inf
    logs = np.log(np.array([[2.0, 4.0], [1.0, 3.0]]))
    assert joint_wealth(logs) == pytest.approx(np.log((2.5 + 7.0) / 2))
