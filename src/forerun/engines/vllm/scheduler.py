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
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
from vllm.v1.core.sched.scheduler import Scheduler as StockScheduler

from forerun.control.controller import Step
from forerun.engines.vllm import step_profiler
from forerun.engines.vllm.contract import check
from forerun.engines.vllm.grammar import forced_tokens
from forerun.engines.vllm.request_options import DEFAULT_OPTIONS, RequestOptions
from forerun.engines.vllm.speculator import ChainSpeculator, DraftRequest, ProposedDraft
from forerun.engines.vllm.stats import PeriodicStatsLogger, logger
from forerun.engines.vllm.step_plan import StepPlan, attach_plan
from forerun.types import RequestView

FORCED_PROBABILITY: Final = 0.98
"""Acceptance probability of a token that a grammar forces: the same text may be tokenized differently."""


@dataclass(slots=True)
class InFlightStep:
    """A scheduled step: the draft of every request in it, its start time and, once known, its duration."""

    step: Step
    drafts: dict[str, ProposedDraft]
    started_at: float
    seconds: float = 0.0


class Scheduler(StockScheduler):  # type: ignore[misc]
    """vLLM's scheduler, with draft tokens set on every decoding request right before each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check()
        super().__init__(*args, **kwargs)
        cost = step_profiler.load_cost(self.vllm_config)
        self.speculator = ChainSpeculator(self.vllm_config, cost)
        self._is_profiled = cost is not None
        self.request_options: dict[str, RequestOptions] = {}
        stats = self.speculator.stats
        stats.publish(self.vllm_config.instance_id, self.vllm_config.parallel_config.data_parallel_index)
        self.stats_logger = PeriodicStatsLogger(stats, time.monotonic())
        self._sampled: set[str] = set()
        self._draft_lengths: dict[str, int] = {}
        self._draft_model_synced: dict[str, bool] = {}
        self._draft_paused = False
        self._in_flight: dict[int, InFlightStep] = {}
        self._finished: list[InFlightStep] = []
        self._last_output_at = 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Draft, then schedule as vLLM does."""
        started_at = time.perf_counter()
        self._record_finished()
        decoding = [request for request in self.running if _is_decoding(request)]
        self._sampled = set()
        requests = self._draft_requests(decoding)
        rows = len(requests) + self._num_prefill_rows(len(requests))
        step = self.speculator.begin_step(requests, rows=rows, context=self._context(decoding))
        drafts = self._drafts(step, decoding, requests)
        for request, draft in zip(decoding, drafts, strict=True):
            request.spec_token_ids = draft.tokens
        self.speculator.stats.set_tracked_requests(len(self.speculator.tracked))
        with self._without_padding():
            output = super().schedule(*args, **kwargs)
        for request in decoding:
            if request.request_id not in output.num_scheduled_tokens:
                request.spec_token_ids = []
        num_draft_tokens = sum(map(len, output.scheduled_spec_decode_tokens.values()))
        step.baseline_rows = output.total_num_scheduled_tokens - num_draft_tokens
        if self._has_draft_model:
            output.num_spec_tokens_to_schedule = self._plan_draft_model(output, step)
            attach_plan(output, StepPlan(frozenset(self._sampled)))
        if output.total_num_scheduled_tokens:
            by_name = {request.name: draft for request, draft in zip(requests, drafts, strict=True)}
            self._in_flight[id(output)] = InFlightStep(step, by_name, started_at)
        return output

    @property
    def _has_draft_model(self) -> bool:
        return "model" in self.speculator.names

    def _num_prefill_rows(self, num_decoding: int) -> int:
        """An estimate of the prompt tokens that the next step prefills."""
        num_free = max(0, self.max_num_running_reqs - len(self.running))
        prefilling = [request for request in self.running if not _is_decoding(request)]
        prefilling += islice(self.waiting, num_free)
        num_left: int = sum(request.num_tokens - request.num_computed_tokens for request in prefilling)
        budget: int = self.max_num_scheduled_tokens - num_decoding
        return max(0, min(num_left, budget))

    def _context(self, requests: list[Any]) -> int:
        return sum(request.num_computed_tokens for request in requests)

    def _draft_requests(self, requests: list[Any], num_pending: int = 0) -> list[DraftRequest]:
        """The draft requests of a batch, after `num_pending` more tokens of every request."""
        share = self._max_draft_per_request(requests)
        result = []
        for request in requests:
            options = self._options(request)
            budget = min(share, self._max_draft(request, options, num_pending))
            result.append(
                DraftRequest(_view(request), budget, options.drafter, _is_greedy(request), options.adaptive)
            )
        return result

    def _plan_draft_model(self, output: Any, step: Step) -> int:
        """The draft length of the draft model at the end of this step, over all requests that then decode.

        If drafting pays for no request, the draft model does not run, and its KV cache lacks this step's
        tokens: it drafts no more for these requests. It drafts for requests that start later.
        """
        scheduled = output.num_scheduled_tokens
        requests = [self.requests[name] for name in scheduled]
        draft_requests = self._draft_requests(requests, num_pending=1)
        for request in requests:
            was_cached = request.num_computed_tokens > scheduled[request.request_id] and self._draft_paused
            self._draft_model_synced.setdefault(request.request_id, not was_cached)
        budgets = [each.max_tokens if self._may_sample(each) else 0 for each in draft_requests]
        following = self.speculator.begin_step(
            draft_requests, rows=len(draft_requests), context=self._context(requests)
        )
        following.is_baseline = False
        lengths = self.speculator.controller.draft_lengths(
            following, "model", np.array(budgets), step.num_prefill_rows
        )
        self._draft_lengths = {
            each.name: length for each, length in zip(draft_requests, lengths.tolist(), strict=True)
        }
        max_length = max(self._draft_lengths.values(), default=0)
        self._draft_model_synced.update(
            (each.name, max_length > 0 and self._may_sample(each)) for each in draft_requests
        )
        self._draft_paused = self._draft_paused or (bool(draft_requests) and max_length == 0)
        return max_length

    def _may_sample(self, request: DraftRequest) -> bool:
        """Whether the draft model may draft for a request: only if its KV cache has all of its tokens.

        Once the draft model skipped a step, tokens from vLLM's prefix cache may be missing there.
        """
        return request.drafter in {None, "model"} and self._draft_model_synced[request.name]

    @contextmanager
    def _without_padding(self) -> Iterator[None]:
        """Within this block, vLLM does not pad new requests with placeholder draft tokens."""
        num_spec_tokens: int = vars(self)["num_spec_tokens"]
        self.num_spec_tokens = 0
        try:
            yield
        finally:
            self.num_spec_tokens = num_spec_tokens

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Take the draft model's tokens for the next step, and record its time."""
        super().update_draft_token_ids(draft_token_ids)
        seconds = getattr(draft_token_ids, "seconds", None)
        if (
            self._has_draft_model
            and seconds is not None
            and draft_token_ids.draft_token_ids
            and self._finished
        ):
            self.speculator.stats.add_seconds("model", seconds)
            depth, step = len(draft_token_ids.draft_token_ids[0]), self._finished[-1].step
            self.speculator.controller.record_draft_time(step, "model", depth, seconds, step.num_prefill_rows)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Record the outcome of every draft, then update as vLLM does."""
        now = time.perf_counter()
        in_flight = self._in_flight.pop(id(scheduler_output), None)
        if in_flight is not None:
            outputs, indices = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
            verified = scheduler_output.scheduled_spec_decode_tokens
            for name, draft in in_flight.drafts.items():
                if outputs and name in indices:
                    num_verified = len(verified.get(name, ()))
                    self.speculator.observe(name, draft, outputs[indices[name]], num_verified)
            in_flight.seconds = now - max(in_flight.started_at, self._last_output_at)
            self._finished.append(in_flight)
        self._last_output_at = now
        if line := self.stats_logger.next_line(time.monotonic()):
            logger.info("%s", line)
            if self._is_profiled:  # a curve that started from the default is too coarse to cache
                step_profiler.save_cost(self.vllm_config, self.speculator.controller.cost)
        return super().update_from_output(scheduler_output, model_runner_output)

    def _record_finished(self) -> None:
        """Record finished steps; the draft model's time is known only after `update_from_output`."""
        for each in self._finished:
            self.speculator.record_step(each.step, list(each.drafts.values()), each.seconds)
        self._finished.clear()

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Drop the speculation state of a finished request; its drafters see its whole output first."""
        self.speculator.forget(request.request_id, _view(request))
        self.request_options.pop(request.request_id, None)
        self._draft_model_synced.pop(request.request_id, None)
        self.speculator.stats.set_tracked_requests(len(self.speculator.tracked))
        self.speculator.stats.set_step_costs(self.speculator.controller.cost)
        return super()._free_request(request, *args, **kwargs)

    def _drafts(self, step: Step, decoding: list[Any], requests: list[DraftRequest]) -> list[ProposedDraft]:
        """The draft of every request: looked up, forced by its grammar, or sampled by the draft model."""
        drafts = self.speculator.draft(step, requests)
        for request, draft_request, draft in zip(decoding, requests, drafts, strict=True):
            if request.use_structured_output:
                self._apply_grammar(request, draft_request, draft)
        if self._has_draft_model:
            self._prefer_sampled(step, decoding, requests, drafts)
        self.speculator.choose(step, drafts)
        return drafts

    def _prefer_sampled(
        self, step: Step, decoding: list[Any], requests: list[DraftRequest], drafts: list[ProposedDraft]
    ) -> None:
        """Use the draft model's draft where it has the higher expected gain, where no other draft has any,
        and where a request names it. The choice never depends on the values of sampled tokens.
        """
        sampled = [ProposedDraft(sampled=True) for _ in drafts]
        for request, draft_request, draft in zip(decoding, requests, sampled, strict=True):
            if draft_request.drafter in {None, "model"}:
                length = min(draft_request.max_tokens, self._draft_lengths.get(draft_request.name, 0))
                draft.extend(request.spec_token_ids[:length], "model")
        if not any(draft.tokens for draft in sampled):
            return
        sampled_gains = self.speculator.expected_gain(step, sampled)
        lookup_gains = self.speculator.expected_gain(step, drafts)
        for index, draft in enumerate(sampled):
            is_better = sampled_gains[index] > lookup_gains[index] or not lookup_gains[index]
            if draft.tokens and (is_better or requests[index].drafter == "model"):
                drafts[index] = draft
                self._sampled.add(requests[index].name)

    def _apply_grammar(self, request: Any, draft_request: DraftRequest, draft: ProposedDraft) -> None:
        """Truncate a draft to the tokens that the request's grammar allows, and append those it forces."""
        manager = self.structured_output_manager
        draft.truncate(len(manager.validate_tokens(request, draft.tokens)))
        grammar = request.structured_output_request.grammar
        uses_grammar = "grammar" in self.speculator.names and draft_request.drafter in {None, "grammar"}
        if uses_grammar and grammar is not None and self._is_constrained(request):
            encode = partial(manager.tokenizer.encode, add_special_tokens=False)
            num_left = draft_request.max_tokens - len(draft.tokens)
            tokens = forced_tokens(grammar, draft.tokens, num_left, encode)
            draft.extend(tokens, "grammar", probability=FORCED_PROBABILITY)

    def _is_constrained(self, request: Any) -> bool:
        """Whether the request's grammar applies already: it may start after the reasoning."""
        manager = self.structured_output_manager
        ended = request.structured_output_request.reasoning_ended
        return bool(manager.reasoner_cls is None or manager.enable_in_reasoning or ended)

    def _options(self, request: Any) -> RequestOptions:
        """The speculation options of a request; the front end has rejected invalid ones."""
        options = self.request_options.get(request.request_id)
        if options is None:
            params = request.sampling_params
            options = (
                DEFAULT_OPTIONS
                if params is None
                else RequestOptions.parse_or_default(params.extra_args, self.speculator.names)
            )
            self.request_options[request.request_id] = options
        return options

    def _max_draft_per_request(self, requests: list[Any]) -> int:
        """An equal share of the step's token budget, so that every request is scheduled.

        0 while any request has a thinking budget: vLLM counts thinking tokens one output token at a time.
        """
        if any(request.sampling_params.thinking_token_budget is not None for request in requests):
            return 0
        return max(0, int(self.max_num_scheduled_tokens) // max(1, len(requests)) - 1)

    def _max_draft(self, request: Any, options: RequestOptions, num_pending: int) -> int:
        """The draft tokens that a request can still emit after `num_pending` more tokens, within its options.

        Each step emits one token more than the accepted draft tokens.
        """
        until_full: int = self.max_model_len - request.num_tokens - num_pending
        until_done: int = request.max_tokens - request.num_output_tokens - num_pending
        limit = self.speculator.max_draft_tokens
        requested = limit if options.max_draft is None else options.max_draft
        return max(0, min(until_full - 1, until_done - 1, requested, limit))


def _is_decoding(request: Any) -> bool:
    """Whether the model has computed all of a request's tokens except the last."""
    return bool(not request.is_prefill_chunk and request.num_computed_tokens >= request.num_tokens - 1)


def _is_greedy(request: Any) -> bool:
    params = request.sampling_params
    return params is None or params.temperature < 1e-5


def _view(request: Any) -> RequestView:
    return RequestView(
        request.request_id,
        request.all_token_ids,
        num_prompt=request.num_prompt_tokens,
        salt=request.cache_salt,
    )
