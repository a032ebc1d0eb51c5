"""Steps without lookups are skipped while the same requests decode, and recorded once that changes."""

from __future__ import annotations

import pytest

from forerun.control.step_cost import StepCost
from forerun.engines.guarded_drafter import DraftFormat
from forerun.engines.speculative_step import DraftRequest, SpeculativeStep
from forerun.engines.speculator import Speculator
from forerun.engines.vllm.lookup_pause import LookupPause
from forerun.engines.vllm.stats import SpecDecodeStats
from forerun.types import RequestView

REQUESTS = ["a", "b"]


@pytest.fixture
def pause() -> LookupPause:
    draft_format = DraftFormat(100, trees=False, q=False)
    counters = SpecDecodeStats((), 4)
    return LookupPause(Speculator({}, StepCost.default(), draft_format, counters=counters))


def resting_step(pause: LookupPause, num_steps: int) -> SpeculativeStep:
    """A finished step after which nothing is to be looked up for this many steps."""
    views = [RequestView(name, [1, 2]) for name in REQUESTS]
    step = pause.speculator.draft([DraftRequest(view, 4) for view in views], rows=2)
    pause.speculator.close(step, 0.1)
    pause.speculator.controller.accounting.lookup_backoff[1]._remaining = num_steps
    return step


def test_a_pause_lasts_until_the_next_lookup(pause: LookupPause) -> None:
    pause.begin(resting_step(pause, 3), REQUESTS, now=1.0)
    assert [pause.skip(["a", "b"]) for _ in range(5)] == [True, True, True, False, False]


def test_a_pause_ends_when_a_request_comes_or_goes(pause: LookupPause) -> None:
    pause.begin(resting_step(pause, 3), REQUESTS, now=1.0)
    assert pause.skip(["a", "b"])
    assert not pause.skip(["a", "b", "c"])
    assert not pause.skip(["a"])


def test_skipped_steps_are_recorded_at_the_end(pause: LookupPause) -> None:
    step = resting_step(pause, 3)
    controller = pause.speculator.controller
    total = controller.exploration_budget.total
    pause.begin(step, REQUESTS, now=1.0)
    assert pause.skip(REQUESTS)
    assert pause.skip(REQUESTS)
    pause.end(now=1.25)
    assert controller.exploration_budget.total == pytest.approx(total + 0.25)
    assert controller.num_steps_without_lookup(step.control) == 1
    pause.end(now=2.0)
    assert controller.exploration_budget.total == pytest.approx(total + 0.25), "recorded once"
    assert not pause.skip(REQUESTS)
