"""The common part of forerun's schedulers: outcomes of steps, statistics, finished requests."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Generic, TypeVar

from forerun.control.accounting import Goodput
from forerun.control.step_cost import StepCost
from forerun.engines.lookahead_planner import LookaheadStep
from forerun.engines.speculative_step import SpeculativeStep
from forerun.engines.speculator import MODEL, Speculator
from forerun.engines.top_token_rows import TopRows
from forerun.engines.vllm import contract, step_profiler
from forerun.engines.vllm.draft_model_planner import DraftModelPlanner
from forerun.engines.vllm.draft_requests import DraftRequestBuilder, is_decoding
from forerun.engines.vllm.launch import speculation_config
from forerun.engines.vllm.speculation import (
    make_speculator,
    make_stats,
    max_draft_tokens,
    record_goodput,
)
from forerun.engines.vllm.static_table import StaticTableWatch
from forerun.engines.vllm.stats import PeriodicStatsLogger, logger
from forerun.engines.vllm.step_plan import read_plan
from forerun.engines.vllm.step_report import TopTokenReport, read_report

StepT = TypeVar("StepT", SpeculativeStep, LookaheadStep)


@dataclass(slots=True)
class InFlightStep(Generic[StepT]):
    """A scheduled step: its drafts, its start time and, once known, its duration."""

    step: StepT
    started_at: float
    seconds: float = 0.0


class SpeculativeScheduler(ABC, Generic[StepT]):
    """Mixed into a scheduler of vLLM: it owns the speculator and reports the outcome of every step to it."""

    num_spec_tokens: int
    vllm_config: Any
    requests: dict[str, Any]
    running: list[Any]
    waiting: Any
    max_num_running_reqs: int
    max_num_scheduled_tokens: int
    hash_block_size: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        contract.check()
        super().__init__(*args, **kwargs)
        contract.check_scheduler(self)
        self.dynamic_sd_lookup = None  # the schedule in the configuration is for CUDA graphs, not for lengths
        cost = step_profiler.load_cost(self.vllm_config)
        self._is_profiled = cost is not None
        self.stats = make_stats(self.vllm_config)
        self.speculator = self._make_speculator(cost)
        self.static_table = StaticTableWatch(self.vllm_config.model_config.model)
        self.draft_requests = DraftRequestBuilder(
            self,
            self.stats.drafters,
            max_draft_tokens(self.vllm_config),
            speculation_config(self.vllm_config).default_names,
        )
        has_draft_model = MODEL in self.stats.drafters
        self.draft_model = (
            DraftModelPlanner(self.speculator, self.stats, self.hash_block_size) if has_draft_model else None
        )
        self.stats.publish(self.vllm_config.instance_id, self.vllm_config.parallel_config.data_parallel_index)
        self.stats_logger = PeriodicStatsLogger(self.stats, time.monotonic())
        self._step_numbers = count()
        self._in_flight: dict[int, InFlightStep[StepT]] = {}
        self._finished: list[InFlightStep[StepT]] = []
        self._last_output_at = self._observe_seconds = 0.0
        self._is_request_checked = False

    def _make_speculator(self, cost: StepCost | None) -> Speculator:
        return make_speculator(self.vllm_config, self.stats, cost)

    def _check_request(self, request: Any) -> None:
        """Check vLLM's request class once, on the first request."""
        if not self._is_request_checked:
            contract.check_request(request)
            self._is_request_checked = True

    def _num_prefill_rows(self, num_decoding: int) -> int:
        """An estimate of the prompt tokens that the next step prefills."""
        num_free: int = max(0, self.max_num_running_reqs - len(self.running))
        prefilling = [*islice(self.waiting, num_free)]
        if num_decoding < len(self.running):
            prefilling += [request for request in self.running if not is_decoding(request)]
        num_left: int = sum(request.num_tokens - request.num_computed_tokens for request in prefilling)
        budget: int = self.max_num_scheduled_tokens - num_decoding
        return max(0, min(num_left, budget))

    def _plan_draft_model(self, step: SpeculativeStep, output: Any, num_pending: int = 0) -> int:
        """The draft length of the draft model at the end of this step."""
        if self.draft_model is None:
            return 0
        requests = [self.requests[name] for name in output.num_scheduled_tokens]
        draft_requests = self.draft_requests.build(requests, num_pending)
        return self.draft_model.plan(step, requests, draft_requests, output.num_scheduled_tokens)

    @contextmanager
    def _without_padding(self) -> Iterator[None]:
        """Within this block, vLLM does not pad new requests with placeholder draft tokens."""
        num_spec_tokens = self.num_spec_tokens
        self.num_spec_tokens = 0
        try:
            yield
        finally:
            self.num_spec_tokens = num_spec_tokens

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Record the outcome of every draft, then update as vLLM does."""
        now = time.perf_counter()
        number = read_plan(scheduler_output).number
        in_flight = None if number is None else self._in_flight.pop(number, None)
        if in_flight is not None:
            report = read_report(model_runner_output)
            self._observe(in_flight.step, scheduler_output, model_runner_output, report.top_tokens)
            self._observe_seconds = time.perf_counter() - now
            if self.draft_model is not None and (time_taken := report.draft_time) is not None:
                step = speculation_of(in_flight.step)
                self.draft_model.record_time(step, time_taken.num_passes, time_taken.seconds)
            in_flight.seconds = now - max(in_flight.started_at, self._last_output_at)
            self._finished.append(in_flight)
        self._last_output_at = now
        if line := self.stats_logger.next_line(time.monotonic()):
            logger.info("%s", line)
            if self._is_profiled:  # a curve that started from the default is too coarse to cache
                step_profiler.save_cost(self.vllm_config, self.speculator.controller.cost)
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]

    def _observe(
        self, step: StepT, scheduler_output: Any, model_runner_output: Any, top_tokens: TopTokenReport | None
    ) -> None:
        """Record the output tokens of every request of a step that is still alive."""
        outputs, indices = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
        scheduled = scheduler_output.scheduled_spec_decode_tokens
        wanted = read_plan(scheduler_output).wants_logits
        rows = top_tokens.by_request() if top_tokens is not None else {}
        for index, request in enumerate(speculation_of(step).requests):
            name = request.name
            output = outputs[indices[name]] if outputs and name in indices else ()
            if len(output) and name in self.speculator.tracked:
                num_verified = len(scheduled.get(name, ()))
                own_rows = self._rows_of(step, name, rows) if name in wanted else None
                self._observe_request(step, index, output, num_verified, own_rows)

    def _rows_of(self, step: StepT, name: str, rows: Mapping[str, TopRows]) -> TopRows | None:  # noqa: ARG002
        """The reported rows of a request's draft."""
        return rows.get(name)

    @abstractmethod
    def _observe_request(
        self, step: StepT, index: int, output: Sequence[int], num_verified: int, rows: TopRows | None
    ) -> None:
        """Record the output of a request's step, in which its leading `num_verified` tokens were verified.

        `rows` are the likeliest next tokens at its rows and their probabilities, if the worker reported them.
        """

    @abstractmethod
    def _close(self, step: StepT, seconds: float) -> Goodput | None:
        """End a step, whose requests were observed."""

    def _record_finished(self) -> None:
        """Record finished steps; the draft model's time is known only after `update_from_output`."""
        for each in self._finished:
            record_goodput(self.stats, speculation_of(each.step), self._close(each.step, each.seconds))
        self._finished.clear()

    @abstractmethod
    def _forget(self, request: Any) -> None:
        """Drop the speculation state of a finished request; its drafters see its whole output first."""

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Free a finished request as vLLM does, after its speculation state."""
        self._forget(request)
        self.draft_requests.forget(request.request_id)
        if self.draft_model is not None:
            self.draft_model.forget(request)
        self.stats.set_tracked_requests(len(self.speculator.tracked))
        self.stats.set_step_costs(self.speculator.controller.cost)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]


def speculation_of(step: SpeculativeStep | LookaheadStep) -> SpeculativeStep:
    """The drafts and outcomes of a step."""
    return step.speculation if isinstance(step, LookaheadStep) else step
