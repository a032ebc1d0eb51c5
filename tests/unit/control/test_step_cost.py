"""What passes cost: the curve, how it is measured, mended, and kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from forerun.control import cost_cache
from forerun.control.step_cost import MIN_SECONDS, REPEATS, TOO_SLOW, StepCost, rising


def test_a_curve_is_a_line_between_what_was_measured_and_goes_on_behind() -> None:
    cost = StepCost((1, 4, 8), (1.0, 1.3, 1.7))
    rows = np.array([0.0, 1.0, 2.0, 4.0, 6.0, 10.0])
    assert [cost.at(num) for num in rows] == pytest.approx([1.0, 1.0, 1.1, 1.3, 1.5, 1.9])


@given(st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.1, 10.0)), min_size=1, max_size=12))
def test_a_curve_never_falls_and_stays_near(points: list[tuple[float, float]]) -> None:
    values, weights = np.array(points).T
    found = rising(values.copy(), weights.copy())
    assert (np.diff(found) >= 0).all()
    assert found == pytest.approx(isotonic_regression(values, weights=weights).x)


def test_what_is_no_curve_is_refused() -> None:
    for rows, seconds in (
        ((1,), (1.0,)),
        ((2, 1), (1.0, 2.0)),
        ((1, 2), (1.0, 0.0)),
        ((1, 2), (1.0, np.nan)),
    ):
        with pytest.raises(ValueError, match="two points"):
            StepCost(rows, seconds)


def test_the_fastest_of_a_few_turns_counts() -> None:
    calls: list[int] = []

    def seconds(rows: int) -> float:
        calls.append(rows)
        return 0.001 * rows * (1 + len(calls) % 3)

    cost = StepCost.profile(seconds, most=40)
    assert cost.rows.tolist() == [1, 2, 4, 8, 16, 17, 32]
    assert calls.count(32) == REPEATS, "the last of them is not tried before"
    assert cost.at(1) == pytest.approx(0.001)


def test_a_slow_step_is_measured_once_and_ends_the_curve() -> None:
    calls: list[int] = []

    def seconds(rows: int) -> float:
        calls.append(rows)
        return MIN_SECONDS if rows > 2 else TOO_SLOW / 2

    assert StepCost.profile(seconds, most=1024).rows.tolist() == [1, 2, 4]
    assert calls == [1, 2, 4, 1, 2, 4]


def shape(cost: StepCost, rows: int = 16) -> float:
    """How much dearer than one row so many are, whatever the mood."""
    return cost.at(rows) / cost.at(1)


def test_a_mood_is_followed_and_leaves_the_curve_as_it_was() -> None:
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.2))
    for _ in range(60):
        cost.update(16, 1.6 * 1.2)
    assert cost.at(16) == pytest.approx(1.6 * 1.2, rel=0.02)
    assert shape(cost) == pytest.approx(1.2, rel=0.12), "sixty steps of one kind cannot tell mood from curve"
    for _ in range(60):
        cost.update(16, 1.2)
    assert shape(cost) == pytest.approx(1.2, rel=0.05)


def test_a_wrong_curve_is_mended_by_a_plain_step_now_and_then() -> None:
    rng = np.random.default_rng(0)
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.0))
    for number in range(1000):
        rows, seconds = (1, 1.0) if number % 50 == 0 else (16, 2.0)
        cost.update(rows, seconds * float(np.exp(0.05 * rng.standard_normal())))
    assert shape(cost) == pytest.approx(2.0, rel=0.15)


def test_a_curve_that_was_measured_beside_something_else_is_soon_mended() -> None:
    rng = np.random.default_rng(0)
    cost = StepCost((1, 2, 4, 8, 16, 32, 64), (0.06, 0.16, 0.13, 0.17, 0.30, 0.17, 0.35))
    assert cost.at(32) == pytest.approx(cost.at(16)), "guesses seem to be free"
    for number in range(120):
        rows, seconds = (16, 0.067) if number % 12 == 0 else (32, 0.09)
        cost.update(rows, seconds * float(np.exp(0.05 * rng.standard_normal())))
    assert cost.at(32) / cost.at(16) == pytest.approx(0.09 / 0.067, rel=0.1)


def test_steps_of_one_kind_say_nothing_of_others() -> None:
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.0))
    for _ in range(1000):
        cost.update(16, 2.0)
    for _ in range(2):
        cost.update(1, 1.0)
        cost.update(16, 2.0)
    assert shape(cost) > 1.5, "a thousand steps of one kind were taken for knowledge of all"


def test_what_is_in_doubt_seems_dear_until_it_was_seen() -> None:
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.0))
    assert cost.at(16) == pytest.approx(1.0)
    _, before = cost.upper_curve(1)
    assert before[0] == pytest.approx(1.0)
    assert before[2] > 1.05
    knots, seconds = cost.upper_curve(3)
    assert knots.tolist() == [1, 3, 4, 16]
    assert seconds[:2].tolist() == pytest.approx([1.0, 1.0])
    assert seconds[2] > 1.02
    for _ in range(40):
        cost.update(16, 1.0)
        cost.update(1, 1.0)
    assert cost.upper_curve(1)[1][2] < 1.02


def test_a_curve_that_is_known_stays_known() -> None:
    cost = StepCost((1, 2), (1.0, 1.012), doubt=0.0)
    for number in range(1000):
        cost.update(1 + number % 2, 1.0 + 0.012 * (number % 2))
    assert cost.upper_curve(1)[1].tolist() == pytest.approx([1.0, 1.012])


def test_a_step_that_was_disturbed_hardly_counts() -> None:
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.2))
    for _ in range(50):
        cost.update(4, 1.0)
    cost.update(4, 100.0)
    assert cost.at(4) < 1.15
    assert shape(cost) == pytest.approx(1.2, rel=0.05)


def test_long_contexts_have_a_curve_of_their_own() -> None:
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.2))
    for number in range(400):
        cost.update(16 if number % 2 else 1, 3.0 if number % 2 else 1.0, context=100_000)
        cost.update(16 if number % 2 else 1, 1.2 if number % 2 else 1.0, context=100)
    assert cost.at(16, 100_000) / cost.at(1, 100_000) == pytest.approx(3.0, rel=0.1)
    assert shape(cost) == pytest.approx(1.2, rel=0.1)


def test_drawing_tokens_has_a_curve_of_its_own() -> None:
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.2))
    for number in range(400):
        cost.update(16 if number % 2 else 1, 2.0 if number % 2 else 1.0, sampled=True)
        cost.update(16 if number % 2 else 1, 1.2 if number % 2 else 1.0)
    assert cost.at(16, sampled=True) / cost.at(1, sampled=True) == pytest.approx(2.0, rel=0.1)
    assert shape(cost) == pytest.approx(1.2, rel=0.1)


def test_a_typical_curve_learns_what_a_second_is_from_the_first_step() -> None:
    cost = StepCost.default()
    cost.update(1, 0.04)
    assert cost.at(1) == pytest.approx(0.04, rel=0.01)
    assert shape(cost, 64) == pytest.approx(1 + 63 * 0.012, rel=0.01)


def test_curves_are_kept_for_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    name = cost_cache.cache_key(model="a", dtype="float32")
    assert name != cost_cache.cache_key(model="a", dtype="bfloat16")
    assert cost_cache.load(name) is None
    cost = StepCost((1, 2, 4), (1.0, 1.5, 2.0))
    cost.update(4, 3.0, context=10_000)
    cost_cache.save(name, cost)
    again = cost_cache.load(name)
    assert again is not None
    again.update(1, 1.0)
    assert shape(again, 4) == pytest.approx(shape(cost, 4), rel=0.01)
    (file,) = (tmp_path / "forerun" / "costs").iterdir()
    file.write_text("{")
    assert cost_cache.load(name) is None, "what cannot be read is measured again"
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    cost_cache.save(name, cost)  # nowhere to keep it: that is all
