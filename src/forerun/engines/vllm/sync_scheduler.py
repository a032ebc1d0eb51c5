"""The scheduler that drafts, without async scheduling, on both model runners of vLLM.

The scheduler sees every request's tokens, sampling settings and salt, and it runs once for all ranks, so
ranks cannot disagree about drafts. The worker drafts nothing itself, or runs vLLM's draft model, whose draft
length the scheduler sets.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler as StockScheduler

from forerun.control.accounting import Goodput
from forerun.engines.guarded_drafter import as_chosen
from forerun.engines.speculative_step import DraftRequest, SpeculativeStep
from forerun.engines.top_token_rows import TopRows, chain_top_tokens, row_contexts
from forerun.engines.tree_paths import warm_up
from forerun.engines.vllm import contract, draft_token_transfer
from forerun.engines.vllm.draft_requests import is_decoding, view_of
from forerun.engines.vllm.grammar import GRAMMAR, constrain, constrain_tree
from forerun.engines.vllm.launch import speculation_config
from forerun.engines.vllm.lookup_pause import LookupPause
from forerun.engines.vllm.scratch_pool import ScratchPool
from forerun.engines.vllm.scratch_reservation import make_scratch_pool
from forerun.engines.vllm.sparse_q import SparseQ
from forerun.engines.vllm.speculation import chain_verdict, with_accepted
from forerun.engines.vllm.speculative_scheduler import InFlightStep, SpeculativeScheduler
from forerun.engines.vllm.startup_log import log_compilation
from forerun.engines.vllm.static_table import use_static_table
from forerun.engines.vllm.step_plan import PLACEHOLDER, StepPlan, attach_plan, read_plan, with_side_paths
from forerun.engines.vllm.tree_planner import TreePlanner, rows_of_tree, tree_verdict, verified_nodes
from forerun.types import Draft, TopTokens


class SyncScheduler(SpeculativeScheduler[SpeculativeStep], StockScheduler):  # type: ignore[misc]
    """vLLM's scheduler, with draft tokens set on every decoding request right before each step."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        pool = None
        if speculation_config(vllm_config).draft_trees:
            contract.check()
            pool = make_scratch_pool(vllm_config, kv_cache_config)
            kv_cache_config = replace(kv_cache_config, num_blocks=pool.first_block)
        super().__init__(vllm_config, kv_cache_config, *args, **kwargs)
        self.trees = None if pool is None else self._make_tree_planner(pool)
        self.lookup_pause = LookupPause(self.speculator)
        self._decoding: list[Any] = []
        self._samples_drafts = speculation_config(self.vllm_config).sampled
        self._close_seconds = {False: 0.0, True: 0.0}  # of the last step without and with draft tokens
        if self.draft_model is None and not self.use_v2_model_runner:
            draft_token_transfer.leave_out(self)

    def _make_tree_planner(self, pool: ScratchPool) -> TreePlanner:
        with log_compilation():
            warm_up()
        return TreePlanner(
            self.speculator.controller,
            self.speculator.merger,
            pool,
            max_segments=self.max_num_running_reqs,
            max_rows=self.vllm_config.scheduler_config.max_num_batched_tokens,
        )

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Draft, then schedule as vLLM does."""
        self._record_finished()
        started_at = time.perf_counter()
        if (table := self.static_table.take()) is not None:
            use_static_table(self.speculator.drafters, table)
        decoding = self._decoding = [request for request in self.running if is_decoding(request)]
        if self.lookup_pause.skip(decoding):
            return self._schedule_skipped(*args, **kwargs)
        self.lookup_pause.end(self._last_output_at)
        step, sampled = self._draft(decoding)
        for request, draft in zip(decoding, step.drafts, strict=True):
            own = step.paths[request.request_id][0] if request.request_id in step.paths else slice(None)
            request.spec_token_ids = draft.tokens[own].tolist() if len(draft) else []
        self.stats.set_tracked_requests(len(self.speculator.tracked))
        with self._without_padding():
            output = super().schedule(*args, **kwargs)
        for request in decoding:
            if request.request_id not in output.num_scheduled_tokens:
                request.spec_token_ids = []
        num_draft_tokens = sum(map(len, output.scheduled_spec_decode_tokens.values()))
        step.control.baseline_rows = output.total_num_scheduled_tokens - num_draft_tokens
        if self.draft_model is not None:
            output.num_spec_tokens_to_schedule = self._plan_draft_model(step, output, num_pending=1)
        side_paths = () if self.trees is None else self.trees.fit(step, output)
        if output.total_num_scheduled_tokens:
            number = next(self._step_numbers)
            q = _q_by_request(step) if self._samples_drafts else {}
            wants_logits = _wants_logits(step, output)
            wants_logits |= {path.name for path in side_paths if path.request_id in wants_logits}
            attach_plan(
                output, StepPlan(number, sampled, q, wants_logits=wants_logits, side_paths=side_paths)
            )
            self._in_flight[number] = InFlightStep(step, started_at)
        return output

    def _schedule_skipped(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule a step of a lookup pause."""
        with self._without_padding():
            output = super().schedule(*args, **kwargs)
        scheduled = output.num_scheduled_tokens
        self.stats.record_undrafted_steps(sum(request.request_id in scheduled for request in self._decoding))
        return output

    def _draft(self, decoding: list[Any]) -> tuple[SpeculativeStep, frozenset[str]]:
        """A step with the drafts to verify, and the requests whose draft the draft model sampled."""
        if decoding:
            self._check_request(decoding[0])
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
        if self.trees is not None:
            self.trees.select(step, decoding)
        self.speculator.choose(step)
        if self.trees is not None:
            self.trees.plan(step)
        return step, sampled

    def _constrain(self, request: Any, draft_request: DraftRequest, draft: Draft) -> Draft:
        """The draft as far as the request's grammar allows it, then the tokens that the grammar forces."""
        num_left = draft_request.max_tokens if self.speculator.uses(draft_request, GRAMMAR) else 0
        chosen = as_chosen(draft) if draft.q else draft  # what the grammar cuts off depends on the tokens
        constrain_draft = constrain if chosen.is_chain else constrain_tree
        return constrain_draft(chosen, request, self.structured_output_manager, max_tokens=num_left)

    def get_grammar_bitmask(self, scheduler_output: Any) -> Any:
        """The masks of requests with a grammar, for the rows of their side paths as well."""
        paths = read_plan(scheduler_output).side_paths
        requests = self.requests
        if not any(requests[path.request_id].use_structured_output for path in paths):
            return super().get_grammar_bitmask(scheduler_output)
        self.requests = requests | {path.name: requests[path.request_id] for path in paths}
        try:
            return super().get_grammar_bitmask(with_side_paths(scheduler_output, paths))
        finally:
            self.requests = requests

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Take the draft model's tokens for the next step; the V1 runner reports its time with them."""
        super().update_draft_token_ids(draft_token_ids)
        drafts = draft_token_ids.draft_token_ids
        if self.draft_model is not None and drafts and self._finished and not self.use_v2_model_runner:
            self.draft_model.record_time(self._finished[-1].step, len(drafts[0]), draft_token_ids.seconds)

    def _observe_request(
        self,
        step: SpeculativeStep,
        index: int,
        output: Sequence[int],
        num_verified: int,
        rows: TopRows | None,
    ) -> None:
        if not len(step.drafts[index]) and rows is None and not step.proposals[index]:
            self.stats.record_request_step((), len(output))
            return
        if not step.drafts[index].is_chain:
            self._observe_tree(step, index, output, rows)
            return
        step.drafts[index] = draft = with_accepted(step.drafts[index], output)
        self.stats.record_request_step(draft.source[:num_verified], len(output))
        request, tokens, top_tokens = step.requests[index], draft.tokens[:num_verified].tolist(), None
        if rows is not None and PLACEHOLDER not in tokens:  # a draft model's rejected tokens are unknown here
            top_tokens = chain_top_tokens(request.view.tokens, tokens, rows)
        verdict = chain_verdict(output, num_verified)
        self.speculator.observe(step, request.name, verdict, num_verified, top_tokens)

    def _observe_tree(
        self, step: SpeculativeStep, index: int, output: Sequence[int], rows: TopRows | None
    ) -> None:
        request, draft = step.requests[index], step.drafts[index]
        nodes = verified_nodes(draft, step.paths[request.name])
        verdict = tree_verdict(draft, output)
        self.stats.record_tree(draft, nodes, verdict.accepted, len(output))
        top_tokens = None if rows is None else TopTokens(row_contexts(request.view.tokens, draft), *rows)
        self.speculator.observe(step, request.name, verdict, top_tokens=top_tokens, nodes=nodes)

    def _rows_of(self, step: SpeculativeStep, name: str, rows: Mapping[str, TopRows]) -> TopRows | None:
        return rows.get(name) if step.draft_of(name).is_chain else rows_of_tree(step, name, rows)

    def _close(self, step: SpeculativeStep, seconds: float) -> Goodput | None:
        """End a step. The time that its outcome takes to record is charged to it and not to the step after,
        which may be a baseline step.
        """
        began, has_drafts = time.perf_counter(), len(step.control.chosen) > 0
        seconds += self._observe_seconds + self._close_seconds[has_drafts]
        goodput = self.speculator.close(step, seconds)
        self._close_seconds[has_drafts] = time.perf_counter() - began
        may_pause = self.draft_model is None and not self._in_flight  # not with pipeline parallelism
        if may_pause and not any(request.use_structured_output for request in self._decoding):
            self.lookup_pause.begin(step, self._decoding, self._last_output_at)
        return goodput

    def _forget(self, request: Any) -> None:
        self.speculator.forget(request.request_id, view_of(request))


def _q_by_request(step: SpeculativeStep) -> dict[str, SparseQ]:
    """The q of every draft that a drafter of this process sampled."""
    return {
        request.name: SparseQ.of(draft)
        for request, draft in zip(step.requests, step.drafts, strict=True)
        if draft.q
    }


def _wants_logits(step: SpeculativeStep, scheduler_output: Any) -> frozenset[str]:
    """The scheduled requests of a step whose drafters learn from logits."""
    names = (step.requests[index].name for index in step.wants_logits)
    return frozenset(name for name in names if name in scheduler_output.num_scheduled_tokens)
