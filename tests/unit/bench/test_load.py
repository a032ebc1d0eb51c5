"""Speed under load: a machine with moods whose curve is known, and ways to decode whose ratios are."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.bench.load import OURS, PLAIN, Run, compare, fitted

TURNS = 8


def seconds(rows: int) -> float:
    return 0.02 + 0.001 * rows


def runs(way: str, rows: list[int], said: int, noise: float = 0.05) -> list[Run]:
    """Turns of steps with these rows, each of which says so many tokens; every turn has a mood."""
    random = np.random.default_rng(len(way))
    moods = np.exp(np.random.default_rng(7).normal(0, 0.3, TURNS))
    return [
        Run.of(
            ("greedy", "chat", way, turn),
            [(num, said, seconds(num) * mood * float(np.exp(random.normal(0, noise)))) for num in rows],
        )
        for turn, mood in enumerate(moods)
    ]


def test_the_curve_is_told_from_the_moods_and_the_ratio_has_no_noise() -> None:
    plain = runs(PLAIN, [4] * 60, 4)
    ours = runs(OURS, [4, 8, 12] * 20, 6)
    curve = fitted([*plain, *ours])
    for rows in (4, 8, 12):
        assert curve.at(rows) / curve.at(4) == pytest.approx(seconds(rows) / seconds(4), rel=0.02)
    ratio = compare(ours, plain, curve)
    right = 1.5 * 60 * seconds(4) / (20 * sum(map(seconds, (4, 8, 12))))
    assert ratio.without_noise == pytest.approx(right, rel=0.01)
    assert ratio.median == pytest.approx(right, rel=0.03)
    assert ratio.low <= ratio.median <= ratio.high
    assert ratio.holds


def test_a_way_that_is_slower_is_found_out_by_both_measures() -> None:
    plain = runs(PLAIN, [4] * 60, 4)
    slow = runs("slow", [6] * 60, 4)
    ratio = compare(slow, plain, fitted([*plain, *slow]))
    assert ratio.without_noise < 0.98
    assert ratio.p_below < 0.05
    assert not ratio.holds


def test_the_curve_never_falls() -> None:
    plain = runs(PLAIN, [4] * 40 + [5], 4, noise=0.4)
    curve = fitted(plain)
    assert list(curve.seconds) == sorted(curve.seconds)
