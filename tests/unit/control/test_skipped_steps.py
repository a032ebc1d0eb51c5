"""Steps that an engine skips, because nothing is looked up in them, count as if they had been observed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from forerun.control.candidates import Candidates
from forerun.control.controller import Controller
from forerun.control.step import Step
from forerun.control.step_cost import StepCost
from unit.control.lookup_steps import lookup_draft

LOOKUP_SECONDS = 0.02


def make_controller(names: Sequence[str], *, adaptive: bool = True) -> Controller:
    controller = Controller(StepCost((1, 2, 4, 8), (1.0, 1.05, 1.15, 1.3)))
    for name in names:
        controller.admit(name, greedy=name.startswith("greedy"), adaptive=adaptive)
    return controller


def run_step(controller: Controller, names: Sequence[str], *, survival: float, row_seconds: float) -> Step:
    """A step whose draft tokens, one per request that is looked up, are rejected."""
    step = controller.begin_step(names, len(names))
    looked_up = controller.should_draft(step).tolist()
    candidates = Candidates.empty()
    if any(looked_up):
        step.lookup_seconds = LOOKUP_SECONDS
        drafts = [lookup_draft(*[survival] * (survival > 0 and each)) for each in looked_up]
        candidates = Candidates.from_drafts(drafts, partial(controller.kind, step))
    num = int(controller.choose(step, candidates).sum())
    seconds = 1.0 + row_seconds * num + step.lookup_seconds
    controller.record_step(step, np.zeros(num, dtype=bool), seconds)
    return step


def run(
    names: Sequence[str], num_steps: int, *, skip: bool, survival: float, row_seconds: float
) -> tuple[list[tuple[int, list[bool], int]], int]:
    """The steps with lookups (number, whether each class is looked up, draft tokens), and the number of
    skipped steps.
    """
    controller, lookups, num_skipped, at = make_controller(names), [], 0, 0
    while at < num_steps:
        step = run_step(controller, names, survival=survival, row_seconds=row_seconds)
        assert step.lookup_enabled is not None
        own = [
            each for each, num in zip(step.lookup_enabled, step.num_by_class, strict=True) if num
        ]  # a class without requests looks nothing up
        if any(own):
            lookups.append((at, own, len(step.chosen)))
        at += 1
        if skip and (num := min(controller.num_steps_without_lookup(step), num_steps - at)):
            controller.record_skipped(step, num, 1.0 * num)
            at, num_skipped = at + num, num_skipped + num
    return lookups, num_skipped


BATCHES = (["greedy"], ["sampled"], ["greedy", "sampled", "greedy too"])


@pytest.mark.parametrize("names", BATCHES)
def test_lookups_that_back_off_happen_in_the_same_steps(names: list[str]) -> None:
    observed, _ = run(names, 1500, skip=False, survival=0.0, row_seconds=0.05)
    skipped, num_skipped = run(names, 1500, skip=True, survival=0.0, row_seconds=0.05)
    assert skipped == observed
    assert num_skipped > 1200


@pytest.mark.parametrize("names", BATCHES)
def test_suspensions_end_at_the_same_time(names: list[str]) -> None:
    observed, _ = run(names, 1500, skip=False, survival=0.9, row_seconds=0.5)
    skipped, num_skipped = run(names, 1500, skip=True, survival=0.9, row_seconds=0.5)
    assert num_skipped > 700
    drafted, expected = ([at for at, _, num in steps if num] for steps in (skipped, observed))
    assert len(drafted) == len(expected)
    assert np.allclose(drafted, expected, rtol=0.02)  # skipped steps count with their predicted time


def test_nothing_is_skipped_for_requests_that_are_not_adaptive() -> None:
    controller = make_controller(["greedy"], adaptive=False)
    for _ in range(50):
        step = run_step(controller, ["greedy"], survival=0.0, row_seconds=0.05)
        assert not controller.num_steps_without_lookup(step)


def test_no_baseline_step_is_skipped() -> None:
    controller = make_controller(["greedy"])
    step = run_step(controller, ["greedy"], survival=0.9, row_seconds=0.05)
    controller.accounting.lookup_backoff[1]._remaining = 5
    assert controller.num_steps_without_lookup(step) == 5
    controller._schedule.next_is_baseline = True
    assert not controller.num_steps_without_lookup(step)
