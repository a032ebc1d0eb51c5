"""The scheduler that drafts, for vLLM's `scheduler_cls`.

The scheduler sees every request's tokens, sampling settings and salt, and it runs once for all ranks, so
ranks cannot disagree about drafts. The worker's proposer is `forerun.engines.vllm.NullProposer`, or vLLM's
draft model, whose draft length the scheduler sets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler as StockScheduler

from forerun.engines.speculative_step import DraftRequest, SpeculativeStep
from forerun.engines.speculator import MODEL
from forerun.engines.vllm import contract, step_profiler
from forerun.engines.vllm.draft_model_planner import DraftModelPlanner
from forerun.engines.vllm.draft_requests import DraftRequestBuilder, is_decoding, view_of
from forerun.engines.vllm.grammar import GRAMMAR, constrain
from forerun.engines.vllm.speculation import (
    chain_verdict,
    make_speculator,
    make_stats,
    max_draft_tokens,
    record_goodput,
)
from forerun.engines.vllm.stats import PeriodicStatsLogger, logger
from forerun.engines.vllm.step_plan import StepPlan, attach_plan, read_plan
from forerun.types import Draft


@dataclass(slots=True)
class InFlightStep:
    """A scheduled step: its drafts, its start time and, once known, its duration."""

    step: SpeculativeStep
    started_at: float
    seconds: float = 0.0


class Scheduler(StockScheduler):  # type: ignore[misc]
    """vLLM's scheduler, with draft tokens set on every decoding request right before each step."""

    num_spec_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        contract.check()
        super().__init__(*args, **kwargs)
        contract.check_scheduler(self)
        cost = step_profiler.load_cost(self.vllm_config)
        self._is_profiled = cost is not None
        self.stats = make_stats(self.vllm_config)
        self.speculator = make_speculator(self.vllm_config, self.stats, cost)
        self.draft_requests = DraftRequestBuilder(
            self, self.stats.drafters, max_draft_tokens(self.vllm_config)
        )
        has_draft_model = MODEL in self.stats.drafters
        self.draft_model = DraftModelPlanner(self.speculator, self.stats) if has_draft_model else None
        self.stats.publish(self.vllm_config.instance_id, self.vllm_config.parallel_config.data_parallel_index)
        self.stats_logger = PeriodicStatsLogger(self.stats, time.monotonic())
        self._step_numbers = count()
        self._in_flight: dict[int, InFlightStep] = {}
        self._finished: list[InFlightStep] = []
        self._last_output_at = 0.0
        self._is_request_checked = False

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Draft, then schedule as vLLM does."""
        started_at = time.perf_counter()
        self._record_finished()
        decoding = [request for request in self.running if is_decoding(request)]
        step, sampled = self._draft(decoding)
        for request, draft in zip(decoding, step.drafts, strict=True):
            request.spec_token_ids = draft.tokens.tolist()
        self.stats.set_tracked_requests(len(self.speculator.tracked))
        with self._without_padding():
            output = super().schedule(*args, **kwargs)
        for request in decoding:
            if request.request_id not in output.num_scheduled_tokens:
                request.spec_token_ids = []
        num_draft_tokens = sum(map(len, output.scheduled_spec_decode_tokens.values()))
        step.control.baseline_rows = output.total_num_scheduled_tokens - num_draft_tokens
        if self.draft_model is not None:
            output.num_spec_tokens_to_schedule = self._plan_draft_model(self.draft_model, step, output)
        if output.total_num_scheduled_tokens:
            number = next(self._step_numbers)
            attach_plan(output, StepPlan(number, sampled))
            self._in_flight[number] = InFlightStep(step, started_at)
        return output

    def _draft(self, decoding: list[Any]) -> tuple[SpeculativeStep, frozenset[str]]:
        """A step with the drafts to verify, and the requests whose draft the draft model sampled."""
        if decoding and not self._is_request_checked:
            contract.check_request(decoding[0])
            self._is_request_checked = True
        requests = self.draft_requests.build(decoding)
        rows = len(requests) + self._num_prefill_rows(len(requests))
        context = sum(request.num_computed_tokens for request in decoding)
        step = self.speculator.draft(requests, rows, context)
        for index, request in enumerate(decoding):
            if request.use_structured_output:
                step.drafts[index] = self._constrain(request, requests[index], step.drafts[index])
        sampled: frozenset[str] = frozenset()
        if self.draft_model is not None:
            sampled = self.draft_model.offer(step, decoding)
        self.speculator.choose(step)
        return step, sampled

    def _constrain(self, request: Any, draft_request: DraftRequest, draft: Draft) -> Draft:
        """The draft as far as the request's grammar allows it, then the tokens that the grammar forces."""
        num_left = draft_request.max_tokens if self.speculator.uses(draft_request, GRAMMAR) else 0
        return constrain(draft, request, self.structured_output_manager, max_tokens=num_left)

    def _num_prefill_rows(self, num_decoding: int) -> int:
        """An estimate of the prompt tokens that the next step prefills."""
        num_free = max(0, self.max_num_running_reqs - len(self.running))
        prefilling = [request for request in self.running if not is_decoding(request)]
        prefilling += islice(self.waiting, num_free)
        num_left: int = sum(request.num_tokens - request.num_computed_tokens for request in prefilling)
        budget: int = self.max_num_scheduled_tokens - num_decoding
        return max(0, min(num_left, budget))

    def _plan_draft_model(self, draft_model: DraftModelPlanner, step: SpeculativeStep, output: Any) -> int:
        """The draft length of the draft model at the end of this step."""
        requests = [self.requests[name] for name in output.num_scheduled_tokens]
        draft_requests = self.draft_requests.build(requests, num_pending=1)
        return draft_model.plan(step, requests, draft_requests, output.num_scheduled_tokens)

    @contextmanager
    def _without_padding(self) -> Iterator[None]:
        """Within this block, vLLM does not pad new requests with placeholder draft tokens."""
        num_spec_tokens = self.num_spec_tokens
        self.num_spec_tokens = 0
        try:
            yield
        finally:
            self.num_spec_tokens = num_spec_tokens

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Take the draft model's tokens for the next step, and record its time."""
        super().update_draft_token_ids(draft_token_ids)
        drafts = draft_token_ids.draft_token_ids
        if self.draft_model is not None and drafts and self._finished:
            self.draft_model.record_time(self._finished[-1].step, len(drafts[0]), draft_token_ids.seconds)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Record the outcome of every draft, then update as vLLM does."""
        now = time.perf_counter()
        number = read_plan(scheduler_output).number
        in_flight = None if number is None else self._in_flight.pop(number, None)
        if in_flight is not None:
            self._observe(in_flight.step, scheduler_output, model_runner_output)
            in_flight.seconds = now - max(in_flight.started_at, self._last_output_at)
            self._finished.append(in_flight)
        self._last_output_at = now
        if line := self.stats_logger.next_line(time.monotonic()):
            logger.info("%s", line)
            if self._is_profiled:  # a curve that started from the default is too coarse to cache
                step_profiler.save_cost(self.vllm_config, self.speculator.controller.cost)
        return super().update_from_output(scheduler_output, model_runner_output)

    def _observe(self, step: SpeculativeStep, scheduler_output: Any, model_runner_output: Any) -> None:
        """Record the output tokens of every request of a step that is still alive."""
        outputs, indices = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
        scheduled = scheduler_output.scheduled_spec_decode_tokens
        for request, draft in zip(step.requests, step.drafts, strict=True):
            name = request.name
            output = outputs[indices[name]] if outputs and name in indices else ()
            if len(output) and name in self.speculator.tracked:
                num_verified = len(scheduled.get(name, ()))
                self.stats.record_request_step(draft.source[:num_verified], len(output))
                self.speculator.observe(step, name, chain_verdict(output, num_verified), num_verified)

    def _record_finished(self) -> None:
        """Record finished steps; the draft model's time is known only after `update_from_output`."""
        for each in self._finished:
            record_goodput(self.stats, each.step, self.speculator.close(each.step, each.seconds))
        self._finished.clear()

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Drop the speculation state of a finished request; its drafters see its whole output first."""
        self.speculator.forget(request.request_id, view_of(request))
        self.draft_requests.forget(request.request_id)
        if self.draft_model is not None:
            self.draft_model.forget(request.request_id)
        self.stats.set_tracked_requests(len(self.speculator.tracked))
        self.stats.set_step_costs(self.speculator.controller.cost)
        return super()._free_request(request, *args, **kwargs)
