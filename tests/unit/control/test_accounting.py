"""Accounting: net gain by class of requests, draft time, and goodput."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from forerun.control.accounting import Accounting, Goodput, totals_by_class
from forerun.control.candidates import Candidates
from forerun.control.controller import Controller
from forerun.control.step import Step
from forerun.control.step_cost import StepCost
from unit.control.lookup_steps import lookup_draft


def test_a_prefill_step_beyond_the_cost_curve_does_not_count_against_speculation() -> None:
    for rows, is_losing in ((1, True), (800, False)):
        controller = Controller(StepCost((1, 2), (1.0, 1.5)))
        controller.admit("a", greedy=True)
        for _ in range(30):
            step = controller.begin_step(["a"], rows)
            step.chosen = Candidates.from_drafts([lookup_draft(0.9)], partial(controller.kind, step))
            rates = controller.record_step(step, np.array([False]), 100.0)
            assert (rates is None) == (rows > 2)
        assert controller.accounting.suspended(step) == (False, is_losing)


def test_unverified_draft_time_is_charged_to_later_draft_tokens() -> None:
    """A draft model takes most of a step without verified tokens; then one token is verified and accepted."""
    for seconds, is_losing in ((0.0, False), (3.0, True)):
        controller = Controller(StepCost((1, 2), (1.0, 1.01)))
        controller.admit("a", greedy=True)
        for _ in range(50):
            step = controller.begin_step([], 5)
            controller.record_draft_time(step, "model", 1, seconds, num_prefill_tokens=5)
            controller.record_step(step, np.zeros(0, dtype=bool), 1.0)
            step = controller.begin_step(["a"], 1)
            step.chosen = Candidates.from_drafts([lookup_draft(0.9)], partial(controller.kind, step))
            controller.record_step(step, np.array([True]), 1.01)
        assert controller.accounting.suspended(step) == (False, is_losing)


def two_requests() -> Step:
    """A step of one sampled and one greedy request with a chosen draft token each."""
    flags = np.array([False, True])
    step = Step(np.arange(2), flags, np.ones(2, dtype=bool), 2, 0, is_baseline=False)
    step.chosen = Candidates.from_chains(
        np.full(2, 0.5), np.ones(2, dtype=np.int64), np.zeros(2, dtype=np.int64), np.zeros(2, dtype=bool)
    )
    return step


def test_goodput_is_predicted_measured_and_predicted_without_draft_tokens() -> None:
    accounting = Accounting(StepCost((1, 2, 4), (1.0, 1.0, 1.5), prior_variance=0.0))
    step = two_requests()
    step.expected_tokens, step.lookup_seconds, step.draft_seconds = 3.0, 0.1, 0.5
    goodput = accounting.record_outcome(step, np.array([True, True]), seconds=1.9)
    assert goodput is not None
    assert goodput.predicted == pytest.approx(3.0 / 2.0)
    assert goodput.measured == pytest.approx(4.0 / 2.0)
    assert goodput.baseline == pytest.approx(2.0 / 1.0)
    assert accounting.speedup == pytest.approx((1 + 2.0) / (1 + 1.9)), "average with the initial step"
    step = Step(np.arange(2), step.greedy, step.adaptive, 2, 0, is_baseline=True)
    assert accounting.record_outcome(step, np.zeros(0, dtype=bool), 0.5) == Goodput(4.0, 4.0, 4.0)


def test_each_class_is_charged_for_its_own_draft_tokens() -> None:
    accounting = Accounting(StepCost((1, 2, 4), (1.0, 1.0, 1.5), prior_variance=0.0))
    for _ in range(100):
        accounting.record_outcome(two_requests(), np.array([False, True]), seconds=1.5)
    assert accounting.suspended(two_requests()) == (True, False)


def test_totals_by_class_leave_out_requests_that_are_not_adaptive() -> None:
    greedy, adaptive = np.array([True, False, False, True]), np.array([True, True, False, True])
    owners = np.array([0, 0, 1, 1, 2, 3])
    mandatory = np.array([True, False, False, False, False, False])
    accepted = np.array([True, True, True, False, True, False])
    totals = totals_by_class((greedy, adaptive), owners, mandatory, accepted)
    assert totals.tolist() == [[2, 1, 1], [3, 2, 1]]
