"""Exploration: its budget, baseline steps, and the order of exploratory draft tokens."""

from __future__ import annotations

from functools import partial

import numpy as np

from forerun.control.candidates import Candidates
from forerun.control.controller import Controller
from forerun.control.exploration import (
    EXPLORATION_SHARE,
    INITIAL_BUDGET_STEPS,
    MIN_BASELINE_INTERVAL,
    RESERVE_BASELINE_AFTER,
    ExplorationBudget,
    ExplorationSchedule,
    exploration_candidates,
)
from forerun.control.step import Step
from forerun.control.step_cost import StepCost
from unit.control.lookup_steps import lookup_draft, run_steps


def test_rejected_drafts_stop_and_exploration_stays_within_its_budget() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.5)))
    controller.admit("a", greedy=True)
    run_steps(controller, 0.0, 50, row_cost=0.5)
    assert run_steps(controller, 0.0, 2000, row_cost=0.5) >= 1 - 1.5 * EXPLORATION_SHARE
    first = 2.0  # the longest possible step
    assert (
        0
        < controller.exploration_budget.spent
        <= EXPLORATION_SHARE * controller.exploration_budget.total + INITIAL_BUDGET_STEPS * first
    )


def test_speculation_resumes_when_acceptance_recovers() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.2)))
    controller.admit("a", greedy=True)
    run_steps(controller, 0.0, 500, row_cost=0.2)
    run_steps(controller, 0.95, 500, row_cost=0.2)
    assert run_steps(controller, 0.95, 100, row_cost=0.2) > 1.8


def test_baseline_steps_correct_a_wrong_cost_curve() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.01)))  # underestimates the cost of rows
    controller.admit("a", greedy=True)
    run_steps(controller, 0.3, 3000, row_cost=0.6)
    assert run_steps(controller, 0.3, 1000, row_cost=0.6) > 0.98


def test_baseline_steps_are_measured_regularly() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.01)))
    controller.admit("a", greedy=True)
    num_baseline = 0
    for _ in range(20 * RESERVE_BASELINE_AFTER):
        step = controller.begin_step(["a"], 1)
        candidates = Candidates.from_drafts([lookup_draft(0.9, 0.8)], partial(controller.kind, step))
        keep = controller.choose(step, candidates)
        num_baseline += step.is_baseline
        assert not (step.is_baseline and keep.any())
        controller.record_step(step, keep[keep], 1.02)
    assert 5 <= num_baseline <= 20


def test_exploration_starts_with_the_request_that_waited_longest() -> None:
    """Five requests; the fourth has a chosen token already, and the fifth one mandatory token only."""
    owners = np.array([0, 0, 1, 2, 3, 4])
    parents = np.array([-1, 0, -1, -1, -1, -1])
    keep = owners == 3
    mandatory = owners == 4
    candidates = (np.full(6, 0.5), parents, np.zeros(6, dtype=np.int64), owners, mandatory)
    eligible = ~keep & ~mandatory
    last_speculated = np.array([7, 9, 5, 1, 1])
    assert exploration_candidates(keep, eligible, candidates, last_speculated).tolist() == [3, 0, 2]
    eligible[3] = False
    assert exploration_candidates(keep, eligible, candidates, last_speculated).tolist() == [0, 2]


def schedule_after(num_steps: int, seconds: float) -> tuple[ExplorationSchedule, ExplorationBudget]:
    """The schedule after speculative steps whose draft tokens are all accepted."""
    cost = StepCost((1, 2), (1.0, 1.0), prior_variance=0.0)
    budget = ExplorationBudget()
    schedule = ExplorationSchedule(cost, budget)
    schedule.admit(0)
    for _ in range(num_steps):
        step = Step(np.array([0]), np.array([True]), np.array([True]), 1, 0, is_baseline=False)
        step.expected_tokens, step.draft_seconds = 2.0, 0.1
        schedule.end_step(step, seconds, speedup=2.0)
    return schedule, budget


def test_the_budget_is_reserved_for_a_baseline_step_that_is_overdue() -> None:
    schedule, budget = schedule_after(RESERVE_BASELINE_AFTER - 1, seconds=0.1)
    assert schedule.max_loss == budget.seconds > 0
    schedule, budget = schedule_after(RESERVE_BASELINE_AFTER, seconds=0.1)
    assert schedule.max_loss == -np.inf
    assert not schedule.next_is_baseline, "half a second of speedup exceeds the budget"


def test_a_baseline_step_follows_once_the_budget_covers_its_loss() -> None:
    schedule, budget = schedule_after(MIN_BASELINE_INTERVAL - 1, seconds=1.0)
    assert not schedule.next_is_baseline
    schedule, budget = schedule_after(MIN_BASELINE_INTERVAL, seconds=1.0)
    assert schedule.next_is_baseline
    assert budget.spent == 0.5, "the baseline takes 1 s, of which a speedup of 2 saves half"
