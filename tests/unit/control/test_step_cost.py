"""Step-cost curves: profiling and online correction."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.control.cost_sweeps import MAX_STEP_SECONDS, PROFILE_SECONDS, REPEATS, CostSweeps
from forerun.control.step_cost import StepCost


def test_a_curve_is_piecewise_linear_and_extrapolates() -> None:
    cost = StepCost((1, 4, 8), (1.0, 1.3, 1.7))
    rows = np.array([0.0, 1.0, 2.0, 4.0, 6.0, 10.0])
    assert [cost.at(num) for num in rows] == pytest.approx([1.0, 1.0, 1.1, 1.3, 1.5, 1.9])


def test_invalid_curves_are_rejected() -> None:
    for rows, seconds in (
        ((1,), (1.0,)),
        ((2, 1), (1.0, 2.0)),
        ((1, 2), (1.0, 0.0)),
        ((1, 2), (1.0, np.nan)),
    ):
        with pytest.raises(ValueError, match="two points"):
            StepCost(rows, seconds)


def test_profiling_takes_the_fastest_of_several_sweeps() -> None:
    calls: list[int] = []

    def seconds(rows: int) -> float:
        calls.append(rows)
        return 0.001 * rows * (1 + len(calls) % 3)

    cost = StepCost.profile(seconds, max_rows=40)
    assert cost.rows.tolist() == [1, 2, 4, 8, 16, 17, 32]
    assert calls.count(32) == REPEATS, "the largest is not measured in the search for it"
    assert cost.at(1) == pytest.approx(0.001)


def test_the_cost_of_blocks_is_a_staircase() -> None:
    cost = StepCost.profile(lambda rows: 0.001 * -(-rows // 8), max_rows=64, block_sizes=[8])
    assert cost.rows.tolist() == [1, 8, 9, 16, 17, 24, 25, 32, 33, 64]
    assert [round(1e3 * cost.at(rows)) for rows in (1, 5, 8, 9, 16, 17, 32, 33)] == [1, 1, 1, 2, 2, 3, 4, 5]


def test_a_slow_step_is_measured_once_and_ends_the_curve() -> None:
    calls: list[int] = []

    def seconds(rows: int) -> float:
        calls.append(rows)
        return PROFILE_SECONDS if rows > 2 else MAX_STEP_SECONDS / 2

    assert StepCost.profile(seconds, max_rows=1024).rows.tolist() == [1, 2, 4]
    assert calls == [1, 2, 4, 1, 2, 4]


def test_the_spread_of_repeats_does_not_depend_on_the_speed_of_a_sweep() -> None:
    curve = np.array([1.0, 1.1, 1.3, 2.0])
    steady = CostSweeps((1, 2, 4, 8), np.outer([1.0, 1.6, 1.3], curve))
    assert steady.spread == pytest.approx(0.0, abs=1e-9)
    jumps = steady.seconds.copy()
    jumps[0, [1, 3]] *= 0.5
    assert CostSweeps(steady.rows, jumps).spread > 0.2
    assert CostSweeps(steady.rows, steady.seconds[:1]).spread == 0.0, "one sweep has no spread"


def test_a_curve_keeps_what_was_profiled_through_corrections_and_the_file() -> None:
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.0))
    for number in range(200):
        cost.update(16 if number % 2 else 1, 2.0 if number % 2 else 1.0)
    again = StepCost.from_dict(cost.to_dict())
    assert again.profiled.tolist() == [1.0, 1.0, 1.0]
    assert shape(again) > 1.5
    assert not again.provisional


def test_a_provisional_curve_is_corrected_sooner() -> None:
    kept = StepCost((1, 4, 16), (1.0, 1.0, 1.0))
    provisional = kept.as_provisional()
    for cost in (kept, provisional):
        for number in range(6):
            cost.update(16 if number % 2 else 1, 3.0 if number % 2 else 1.0)
    assert provisional.provisional
    assert not kept.provisional
    assert abs(shape(provisional) - 3.0) < abs(shape(kept) - 3.0)


def shape(cost: StepCost, rows: int = 16) -> float:
    """Cost of a number of rows relative to one row, independent of machine speed."""
    return cost.at(rows) / cost.at(1)


def test_a_change_of_machine_speed_leaves_the_shape_of_the_curve() -> None:
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.2))
    for _ in range(60):
        cost.update(16, 1.6 * 1.2)
    assert cost.at(16) == pytest.approx(1.6 * 1.2, rel=0.02)
    assert shape(cost) == pytest.approx(1.2, rel=0.12), (
        "steps of one row count cannot separate speed from curve"
    )
    for _ in range(60):
        cost.update(16, 1.2)
    assert shape(cost) == pytest.approx(1.2, rel=0.05)


def test_occasional_baseline_steps_correct_a_wrong_curve() -> None:
    rng = np.random.default_rng(0)
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.0))
    for number in range(1000):
        rows, seconds = (1, 1.0) if number % 50 == 0 else (16, 2.0)
        cost.update(rows, seconds * float(np.exp(0.05 * rng.standard_normal())))
    assert shape(cost) == pytest.approx(2.0, rel=0.15)


def test_a_curve_profiled_on_a_busy_machine_is_corrected_within_120_steps() -> None:
    rng = np.random.default_rng(0)
    cost = StepCost((1, 2, 4, 8, 16, 32, 64), (0.06, 0.16, 0.13, 0.17, 0.30, 0.17, 0.35))
    assert cost.at(32) == pytest.approx(cost.at(16)), "rows seem to be free"
    for number in range(120):
        rows, seconds = (16, 0.067) if number % 12 == 0 else (32, 0.09)
        cost.update(rows, seconds * float(np.exp(0.05 * rng.standard_normal())))
    assert cost.at(32) / cost.at(16) == pytest.approx(0.09 / 0.067, rel=0.1)


def test_steps_of_one_row_count_do_not_make_other_row_counts_certain() -> None:
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.0))
    for _ in range(1000):
        cost.update(16, 2.0)
    for _ in range(2):
        cost.update(1, 1.0)
        cost.update(16, 2.0)
    assert shape(cost) > 1.5, "steps of one row count made the filter certain about others"


def test_the_upper_curve_adds_uncertainty_until_a_row_count_is_observed() -> None:
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


def test_a_curve_without_prior_variance_is_not_changed() -> None:
    cost = StepCost((1, 2), (1.0, 1.012), prior_variance=0.0)
    for number in range(1000):
        cost.update(1 + number % 2, 1.0 + 0.012 * (number % 2))
    assert cost.upper_curve(1)[1].tolist() == pytest.approx([1.0, 1.012])


def test_a_disturbed_step_has_little_weight() -> None:
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.2))
    for _ in range(50):
        cost.update(4, 1.0)
    cost.update(4, 100.0)
    assert cost.at(4) < 1.15
    assert shape(cost) == pytest.approx(1.2, rel=0.05)


def test_long_contexts_have_their_own_curve() -> None:
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.2))
    for number in range(400):
        cost.update(16 if number % 2 else 1, 3.0 if number % 2 else 1.0, context=100_000)
        cost.update(16 if number % 2 else 1, 1.2 if number % 2 else 1.0, context=100)
    assert cost.at(16, 100_000) / cost.at(1, 100_000) == pytest.approx(3.0, rel=0.1)
    assert shape(cost) == pytest.approx(1.2, rel=0.1)


def test_sampling_has_its_own_curve() -> None:
    cost = StepCost((1, 4, 16), (1.0, 1.0, 1.2))
    for number in range(400):
        cost.update(16 if number % 2 else 1, 2.0 if number % 2 else 1.0, sampled=True)
        cost.update(16 if number % 2 else 1, 1.2 if number % 2 else 1.0)
    assert cost.at(16, sampled=True) / cost.at(1, sampled=True) == pytest.approx(2.0, rel=0.1)
    assert shape(cost) == pytest.approx(1.2, rel=0.1)


def test_the_default_curve_takes_its_scale_from_the_first_step() -> None:
    cost = StepCost.default()
    cost.update(1, 0.04)
    assert cost.at(1) == pytest.approx(0.04, rel=0.01)
    assert shape(cost, 64) == pytest.approx(1 + 63 * 0.012, rel=0.01)
