"""The scheduler for async scheduling: it plans draft lengths one step ahead, and the worker drafts.

`schedule` runs while a step is in flight, so the tokens to draft from are not known yet. It plans how many
draft tokens every request will verify, and sends the worker what its drafters need.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler as StockAsyncScheduler

from forerun.control.accounting import Goodput
from forerun.control.step_cost import StepCost
from forerun.drafters.static_table import StaticTable
from forerun.engines.lookahead_planner import LookaheadPlanner, LookaheadStep
from forerun.engines.speculative_step import DraftRequest
from forerun.engines.speculator import MODEL, Speculator
from forerun.engines.top_token_rows import TopRows
from forerun.engines.vllm.draft_requests import view_of
from forerun.engines.vllm.launch import speculation_config
from forerun.engines.vllm.speculation import make_chain_drafter, make_speculator, with_accepted
from forerun.engines.vllm.speculative_scheduler import InFlightStep, SpeculativeScheduler
from forerun.engines.vllm.static_table import use_static_table
from forerun.engines.vllm.step_plan import PLACEHOLDER, DraftingPlan, StepPlan, attach_plan, read_plan
from forerun.engines.vllm.worker_updates import WorkerUpdates


class AsyncScheduler(SpeculativeScheduler[LookaheadStep], StockAsyncScheduler):  # type: ignore[misc]
    """vLLM's async scheduler, with placeholders for the planned draft tokens of every decoding request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.worker_updates = WorkerUpdates(share_outputs=speculation_config(self.vllm_config).share_outputs)
        self._last_processed = -1
        self._new_table: StaticTable | None = None

    def _make_speculator(self, cost: StepCost | None) -> Speculator:
        chain_drafter = make_chain_drafter(self.vllm_config, self.stats)
        speculator = make_speculator(self.vllm_config, self.stats, cost, chain_drafter.drafters)
        self.planner = LookaheadPlanner(speculator, chain_drafter)
        self._learns_logits = chain_drafter.learns_logits
        return speculator

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Plan draft lengths, then schedule as vLLM does."""
        started_at = time.perf_counter()
        self._record_finished()
        if (table := self.static_table.take()) is not None:
            self.planner.after_lookups(partial(use_static_table, self.planner.chains.drafters, table))
            self._new_table = table
        decoding = [request for request in self.running if _is_decoding(request)]
        step = self._plan(decoding)
        for request, length in zip(decoding, step.lengths, strict=True):
            request.spec_token_ids = [PLACEHOLDER] * length
        self.stats.set_tracked_requests(len(self.speculator.tracked))
        with self._without_padding():
            output = super().schedule(*args, **kwargs)
        scheduled = output.scheduled_spec_decode_tokens
        for index, request in enumerate(decoding):
            step.limit(index, len(scheduled.get(request.request_id, ())))
            if request.request_id not in output.num_scheduled_tokens:
                request.spec_token_ids = []
        step.speculation.control.baseline_rows = output.total_num_scheduled_tokens - sum(step.lengths)
        output.num_spec_tokens_to_schedule = self._plan_draft_model(step.speculation, output)
        if output.total_num_scheduled_tokens:
            number = next(self._step_numbers)
            drafting = self._drafting_plan(step)
            wants_logits = frozenset(drafting.requests if drafting and self._learns_logits else ())
            attach_plan(output, StepPlan(number, drafting=drafting, wants_logits=wants_logits))
            self._in_flight[number] = InFlightStep(step, started_at)
        return output

    def _plan(self, decoding: list[Any]) -> LookaheadStep:
        """The draft lengths of the next step."""
        if decoding:
            self._check_request(decoding[0])
        requests = self.draft_requests.build(decoding)
        for index, request in enumerate(decoding):
            if request.use_structured_output and not request.num_output_placeholders:
                # vLLM fetches drafts for validation only if a step of the request is in flight.
                requests[index] = _without_draft(requests[index])
        step = self.planner.plan(
            requests,
            [_num_rows_in_flight(request) for request in decoding],
            rows=len(requests) + self._num_prefill_rows(len(requests)),
            context=sum(request.num_computed_tokens for request in decoding),
        )
        if self.draft_model is not None:
            self.draft_model.offer_ahead(step)
        return step

    def _drafting_plan(self, step: LookaheadStep) -> DraftingPlan | None:
        """The requests whose drafts the worker looks up; None if there are none."""
        names = [
            request.name
            for request, draft, length in zip(
                step.speculation.requests, step.speculation.drafts, step.lengths, strict=True
            )
            if length and draft.source[:1] != (MODEL,)
        ]
        if not names:
            return None
        updates = {
            name: self.worker_updates.update(
                self.requests[name],
                self.draft_requests.drafters_of(name),
                self.draft_requests.prediction_of(name),
            )
            for name in names
        }
        table, self._new_table = self._new_table, None
        return DraftingPlan(self._last_processed, updates, self.worker_updates.take_finished(), table)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Record the outcome of every draft, then update as vLLM does."""
        number = read_plan(scheduler_output).number
        if number is not None:
            self._last_processed = number
        return super().update_from_output(scheduler_output, model_runner_output)

    def _observe_request(
        self,
        step: LookaheadStep,
        index: int,
        output: Sequence[int],
        num_verified: int,  # noqa: ARG002
        rows: TopRows | None,
    ) -> None:
        speculation = step.speculation
        name = speculation.requests[index].name
        speculation.drafts[index] = with_accepted(speculation.drafts[index], output)
        view = view_of(self.requests[name], self.draft_requests.prediction_of(name))
        self.planner.observe(step, view, output, rows)
        num_filled = len(step.filled_tokens(index))
        self.stats.record_request_step(speculation.drafts[index].source[:num_filled], len(output))

    def _close(self, step: LookaheadStep, seconds: float) -> Goodput | None:
        return self.planner.close(step, seconds)

    def _forget(self, request: Any) -> None:
        drafters = self.draft_requests.drafters_of(request.request_id)
        self.planner.forget(request.request_id, view_of(request), drafters)
        self.worker_updates.finish(request, drafters)


def _is_decoding(request: Any) -> bool:
    """Whether the next step of a request samples its next token, if a step in flight ends as planned."""
    num_left = request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
    return not request.is_prefill_chunk and num_left == 1


def _num_rows_in_flight(request: Any) -> int | None:
    """The draft rows of a request in the step in flight; None if it is in none."""
    placeholders: int = request.num_output_placeholders
    return placeholders - 1 if placeholders else None


def _without_draft(request: DraftRequest) -> DraftRequest:
    return DraftRequest(request.view, 0, request.drafters, request.greedy, request.adaptive)
