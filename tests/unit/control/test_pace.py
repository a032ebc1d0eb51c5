"""How far a draft model guesses: as far as the theory says for what was measured."""

from __future__ import annotations

import pytest

from forerun.control.pace import Pace
from forerun.core.theory import best_gamma


@pytest.mark.parametrize(("alpha", "cost"), [(0.8, 0.05), (0.6, 0.1), (0.3, 0.12), (0.95, 0.02)])
def test_it_comes_to_what_pays_best(alpha: float, cost: float) -> None:
    pace = Pace(most=24)
    for round_ in range(400):  # every alpha-th guess stands, in a row as long as it is asked for
        asked = pace.how_far()
        kept = 0
        while kept < asked and (hash((round_, kept)) % 1000) / 1000 < alpha:
            kept += 1
        pace.heard(asked, kept)
        pace.timed(asked, asked * cost, 1.0 + asked * cost)
    assert pace.alpha == pytest.approx(alpha, abs=0.12)
    assert pace.cost == pytest.approx(cost)
    assert pace.how_far() == max(1, best_gamma(pace.alpha, cost, 24))


def test_it_always_asks_for_one_or_it_would_never_learn() -> None:
    pace = Pace(most=8)
    for _ in range(300):
        pace.heard(1, 0)
        pace.timed(1, 0.5, 1.5)
    assert pace.how_far() == 1
    assert pace.expected(1) < 0.05


def test_bounds_and_times_that_say_nothing() -> None:
    pace = Pace(most=3)
    for _ in range(300):
        pace.heard(3, 3)
        pace.timed(3, 0.001, 1.0)
    assert pace.how_far() == 3
    before = pace.cost
    pace.timed(0, 0.0, 1.0)
    pace.timed(2, 2.0, 1.0)
    assert pace.cost == before
