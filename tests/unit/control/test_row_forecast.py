"""The forecast of draft rows one step ahead, by hand and by what it learns."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.control.controller import Controller
from forerun.control.row_forecast import (
    MIN_FILL_PROBABILITY,
    NOT_IN_FLIGHT,
    RowForecast,
    num_likely_filled,
    row_acceptance,
)
from forerun.control.step_cost import StepCost
from forerun.types import FloatArray

SURVIVALS = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
"""Of one draft of five tokens."""

AFTER_REJECTION = np.array([[0.3, 0.2, 0.1, 0.05]])


def acceptance(in_flight: int, num_rows: int, survivals: FloatArray = SURVIVALS) -> FloatArray:
    sizes = np.array([len(survivals)])
    return row_acceptance(survivals, sizes, np.array([in_flight]), AFTER_REJECTION, np.array([num_rows]))


def test_a_row_is_accepted_in_the_continuation_or_after_a_rejection() -> None:
    # Two rows in flight: the step emits the draft's third token with 0.7, and tokens 4 and 5 follow.
    assert acceptance(2, 4) == pytest.approx([0.6 + 0.3 * 0.3, 0.5 + 0.3 * 0.2, 0.3 * 0.1, 0.3 * 0.05])
    # Without rows in flight, the step emits the first draft token with 0.9.
    assert acceptance(0, 2) == pytest.approx([0.8 + 0.1 * 0.3, 0.7 + 0.1 * 0.2])
    assert acceptance(5, 2) == pytest.approx([0.3, 0.2]), "the draft has no continuation"
    assert acceptance(0, 2, np.zeros(0)) == pytest.approx([0.3, 0.2]), "no draft is known"


def test_without_a_step_in_flight_the_draft_is_known() -> None:
    assert acceptance(NOT_IN_FLIGHT, 4) == pytest.approx([0.9, 0.8, 0.7, 0.6])


def test_acceptance_never_rises_within_a_request() -> None:
    sizes, in_flight, max_rows = np.array([2]), np.array([0]), np.array([3])
    after_rejection = np.array([[0.5, 0.5, 0.5]])
    rows = row_acceptance(np.array([0.2, 0.01]), sizes, in_flight, after_rejection, max_rows)
    assert rows.tolist() == pytest.approx([0.41, 0.4, 0.4])


def test_rows_are_planned_only_where_they_are_likely_filled() -> None:
    found = np.array([[0.6, 0.5, 0.4, 0.3]])

    def likely(in_flight: int) -> int:
        nums = num_likely_filled(SURVIVALS, np.array([5]), np.array([in_flight]), found, np.array([4]))
        return int(nums[0])

    assert MIN_FILL_PROBABILITY == 0.7
    assert likely(2) == 2, "0.7 + 0.3 x 0.6 and 0.7 + 0.3 x 0.5, then 0.3 x 0.4"
    assert likely(0) == 4
    assert likely(5) == 0, "0.6"
    assert likely(NOT_IN_FLIGHT) == 4


def test_requests_of_a_batch_have_their_own_drafts() -> None:
    survivals, sizes = np.array([0.5, 0.4, 0.9, 0.8, 0.7]), np.array([2, 3])
    accepted = np.array([[0.2, 0.1], [0.2, 0.1]])
    rows = row_acceptance(survivals, sizes, np.array([0, 1]), accepted, np.array([1, 2]))
    assert rows.tolist() == pytest.approx([0.4 + 0.5 * 0.2, 0.7 + 0.2 * 0.2, 0.2 * 0.1])


def forecast_after(num_accepted: int, num_found: int, num_steps: int = 60) -> tuple[list[float], int]:
    """The acceptance of four rows after a rejection, and the rows that are likely filled, after the same
    outcome in many steps.
    """
    controller = Controller(StepCost.default())
    controller.admit("r", greedy=True)
    step, forecast, clues = controller.begin_step(["r"], 1), RowForecast(controller), np.array([0.1])
    for _ in range(num_steps):
        forecast.record_accepted(step, clues, np.array([num_accepted]), np.array([4]))
        forecast.record_found(step, clues, np.array([num_found]), np.array([4]))
    drafts = np.array([0]), np.array([0]), clues
    rows, max_rows = forecast.acceptance(step, np.zeros(0), drafts, np.array([4]))
    return rows.tolist(), int(max_rows[0])


def test_acceptance_and_length_after_a_rejection_are_learnt() -> None:
    rows, num_rows = forecast_after(num_accepted=2, num_found=4)
    assert num_rows == 4
    assert rows[1] > 0.5
    assert rows[2] < 0.3
    rows, num_rows = forecast_after(num_accepted=0, num_found=4)
    assert (num_rows, rows[0] < 0.03) == (4, True)
    assert forecast_after(num_accepted=0, num_found=0) == ([], 0)
    assert 0 < forecast_after(num_accepted=2, num_found=2)[1] <= 2


def test_requests_that_are_not_adaptive_get_all_rows() -> None:
    controller = Controller(StepCost.default())
    controller.admit("r", greedy=True, adaptive=False)
    step, drafts = controller.begin_step(["r"], 1), (np.array([0]), np.array([0]), np.array([0.0]))
    acceptance, max_rows = RowForecast(controller).acceptance(step, np.zeros(0), drafts, np.array([6]))
    assert controller.plan_rows(step, acceptance, max_rows).tolist() == [6]
