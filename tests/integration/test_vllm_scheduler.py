"""The scheduler matches the output of a step to its drafts, whatever happens to vLLM's message in between."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler as StockScheduler
from vllm.v1.engine.core import EngineCore

from forerun.control.step_cost import StepCost
from forerun.engines.guarded_drafter import DraftFormat
from forerun.engines.speculative_step import DraftRequest
from forerun.engines.speculator import Speculator
from forerun.engines.vllm import draft_token_transfer
from forerun.engines.vllm.speculative_scheduler import InFlightStep
from forerun.engines.vllm.stats import PeriodicStatsLogger, SpecDecodeStats
from forerun.engines.vllm.step_plan import StepPlan, attach_plan
from forerun.engines.vllm.sync_scheduler import SyncScheduler
from forerun.types import Draft, RequestView

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A scheduler without engine: only what the outcome of a step needs."""
    monkeypatch.setattr(StockScheduler, "update_from_output", lambda *_: {})
    made: Any = SyncScheduler.__new__(SyncScheduler)
    made.stats = SpecDecodeStats(("suffix",), 4)
    made.stats_logger = PeriodicStatsLogger(made.stats, 0.0, every=float("inf"))
    draft_format = DraftFormat(100, trees=False, q=False)
    made.speculator = Speculator({}, StepCost.default(), draft_format, counters=made.stats)
    made.draft_model = None
    made._in_flight, made._finished, made._last_output_at = {}, [], 0.0
    return made


@pytest.mark.parametrize("is_left_out", [True, False])
def test_the_worker_is_not_asked_for_draft_tokens_that_it_does_not_have(is_left_out: bool) -> None:
    asked = []
    engine: Any = SimpleNamespace(
        scheduler=_Scheduler(),
        check_for_draft_tokens=True,
        async_scheduling=False,
        model_executor=SimpleNamespace(take_draft_token_ids=lambda: asked.append(1)),
    )
    draft_token_transfer.leave_out(engine.scheduler if is_left_out else _Scheduler())
    EngineCore.post_step(engine, True)
    assert bool(asked) is not is_left_out


class _Scheduler:
    """Stands for the scheduler of one engine."""


def schedule(scheduler: Any, number: int, tokens: list[int]) -> SchedulerOutput:
    """Put a step with one draft in flight; returns vLLM's message about it."""
    step = scheduler.speculator.draft([DraftRequest(RequestView("r", [1, 2]), 4)], rows=1)
    step.drafts[0] = Draft.chain(tokens, source="suffix")
    scheduler._in_flight[number] = InFlightStep(step, 0.0)
    output = SchedulerOutput.make_empty()
    output.scheduled_spec_decode_tokens = {"r": tokens}
    attach_plan(output, StepPlan(number))
    return output


def output_of(tokens: list[int]) -> Any:
    return SimpleNamespace(sampled_token_ids=[tokens], req_id_to_index={"r": 0})


def test_a_copy_of_the_message_belongs_to_the_step_of_the_original(scheduler: Any) -> None:
    message = pickle.loads(pickle.dumps(schedule(scheduler, 0, [5, 6])))
    scheduler.update_from_output(message, output_of([5, 9]))
    (finished,) = scheduler._finished
    assert finished.step.verdicts[0].accepted == (0,)
    assert finished.step.num_verified == [2]


def test_outputs_that_arrive_in_another_order_belong_to_their_own_steps(scheduler: Any) -> None:
    first, second = schedule(scheduler, 0, [5]), schedule(scheduler, 1, [7, 8])
    scheduler.update_from_output(second, output_of([7, 8, 3]))
    scheduler.update_from_output(first, output_of([4]))
    assert [each.step.verdicts[0].accepted for each in scheduler._finished] == [(0, 1), ()]
    assert not scheduler._in_flight


def test_a_message_without_a_plan_belongs_to_no_step(scheduler: Any) -> None:
    schedule(scheduler, 0, [5])
    scheduler.update_from_output(SchedulerOutput.make_empty(), output_of([5]))
    assert not scheduler._finished
