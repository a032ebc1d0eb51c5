"""Backoff from lookups that gain less than they take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from forerun.control.candidates import Candidates
from forerun.control.controller import Controller
from forerun.control.lookup_backoff import MAX_BACKOFF_STEPS, MIN_LOOKUPS, LookupBackoff
from forerun.control.step_cost import StepCost
from unit.control.lookup_steps import lookup_draft


def run_with_lookups(
    controller: Controller,
    *,
    num_steps: int,
    lookup_seconds: float,
    accept: bool = False,
    found_any: bool = True,
) -> int:
    """Run steps of one request whose lookups take `lookup_seconds`; returns the number of lookups."""
    num_lookups = 0
    for _ in range(num_steps):
        step = controller.begin_step(["a"], 1)
        candidates = Candidates.empty()
        if controller.should_draft(step).all():
            num_lookups += 1
            step.lookup_seconds = lookup_seconds
            candidates = Candidates.from_drafts(
                [lookup_draft(*[0.9] * found_any)], partial(controller.kind, step)
            )
        num = int(controller.choose(step, candidates).sum())
        seconds = 1.0 + 0.05 * num + step.lookup_seconds
        controller.record_step(step, np.full(num, accept), seconds)
    return num_lookups


def test_lookups_back_off_where_they_cost_more_than_they_gain() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.05)))
    controller.admit("a", greedy=True)
    run_with_lookups(controller, found_any=False, num_steps=100, lookup_seconds=0.02)
    assert (
        run_with_lookups(controller, found_any=False, num_steps=900, lookup_seconds=0.02)
        <= 900 / MAX_BACKOFF_STEPS
    )
    run_with_lookups(controller, accept=False, num_steps=200, lookup_seconds=0.02)
    assert run_with_lookups(controller, accept=False, num_steps=900, lookup_seconds=0.02) < 900 / 3
    assert run_with_lookups(controller, accept=True, num_steps=100, lookup_seconds=0.02) >= 30, "backoff ends"
    assert run_with_lookups(controller, accept=True, num_steps=500, lookup_seconds=0.02) >= 490
    steady = Controller(StepCost((1, 2), (1.0, 1.05)))
    steady.admit("a", greedy=True, adaptive=False)
    assert run_with_lookups(steady, accept=False, num_steps=200, lookup_seconds=0.02) == 200, "not adaptive"


def test_draft_tokens_of_requests_that_are_not_adaptive_do_not_affect_lookup_backoff() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.5)))
    controller.admit("a", greedy=True)
    controller.admit("all", greedy=True, adaptive=False)
    for _ in range(300):
        step = controller.begin_step(["a", "all"], 2)
        mask = controller.should_draft(step)
        assert mask[1]
        step.lookup_seconds = 0.02
        own = lookup_draft(0.99) if mask[0] else lookup_draft()
        candidates = Candidates.from_drafts([own, lookup_draft(*[0.5] * 4)], partial(controller.kind, step))
        keep = controller.choose(step, candidates)
        accepted = candidates.owners[keep] == 0
        controller.record_step(step, accepted, 1.0 + 0.5 * (1 + keep.sum()))
    assert mask[0], "losses of other requests do not count"


def test_one_slow_lookup_does_not_cause_backoff() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.05)))
    controller.admit("a", greedy=True)
    run_with_lookups(controller, accept=True, num_steps=1, lookup_seconds=100.0)
    assert run_with_lookups(controller, accept=True, num_steps=100, lookup_seconds=0.001) >= 95


def num_steps_backed_off(
    backoff: LookupBackoff, outcomes: Sequence[tuple[float, float]], *, took: float = 1.0
) -> int:
    """Number of steps without a lookup, for lookups with these expected and realized gains."""
    steps = 0
    for expected, realized in outcomes:
        if backoff.should_look_up():
            backoff.record_lookup(expected, realized, took)
        else:
            steps += 1
    return steps


def test_expected_gain_counts_by_its_realized_share() -> None:
    """Selection makes realized gains smaller than expected ones, and outcomes are noisy."""
    noise = np.random.default_rng(0).normal(0.0, 8.0, (20, 3000))

    def share(mean: float, rests: list[LookupBackoff]) -> float:
        outcomes = ([(2.0, mean + each) for each in some] for some in noise)
        return sum(map(num_steps_backed_off, rests, outcomes)) / noise.size

    losing = [LookupBackoff() for _ in noise]
    assert share(2.0, [LookupBackoff() for _ in noise]) < 0.05
    assert share(0.0, losing) > 0.75
    assert num_steps_backed_off(losing[0], [(200.0, 200.0)] * 100) <= 2 * MAX_BACKOFF_STEPS, (
        "text starts to repeat"
    )
    assert num_steps_backed_off(losing[0], [(0.0, 0.0)] * 1200) > 800
    assert num_steps_backed_off(losing[0], [(0.0, 100.0)] * 20) <= MAX_BACKOFF_STEPS, "exploration succeeded"


def test_each_class_of_requests_backs_off_on_its_own() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.05)))
    controller.admit("greedy", greedy=True)
    controller.admit("sampled", greedy=False)
    for _ in range(2 * int(MIN_LOOKUPS)):
        controller.accounting.lookup_backoff[0].record_lookup(0.0, 0.0, 1.0)
        controller.accounting.lookup_backoff[1].record_lookup(2.0, 2.0, 1.0)
    assert controller.should_draft(controller.begin_step(["greedy", "sampled"], 2)).tolist() == [True, False]
