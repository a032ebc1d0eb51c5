"""Draft lengths planned one step ahead, for engines that schedule a step while the one before is in flight.

    step = planner.plan(requests, in_flight, rows, context)  # `step.lengths`: draft rows of each request
    planner.observe(step, view, output)                      # its output, once per request
    planner.close(step, seconds)                             # the controller learns from the outcomes
    planner.forget(name, view)                               # when a request ends

The worker looks up the drafts of a step after the step before has ended, and truncates them to the planned
lengths. When the planner plans the next step, it knows the same tokens and looks up the same drafts: shadow
drafts. They give the statistics of the step in flight, and the forecast of the next one (`RowForecast`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from forerun.control.accounting import Goodput
from forerun.control.row_forecast import NOT_IN_FLIGHT, RowForecast
from forerun.engines.chain_drafter import PADDING, ChainDrafter, merge_chains, pad_chain
from forerun.engines.guarded_drafter import as_chosen
from forerun.engines.shadow_drafts import ShadowDraft, ShadowOutcomes, first_survival, num_matching
from forerun.engines.speculative_step import DraftRequest, SpeculativeStep
from forerun.engines.speculator import Speculator
from forerun.engines.top_token_rows import TopRows, chain_top_tokens, learning_order
from forerun.types import BoolArray, Draft, IntArray, RequestView, Tokens, TopTokens, Verdict


@dataclass(slots=True)
class LookaheadStep:
    """A step whose draft lengths were planned before its drafts are known.

    Lists have one entry per request. `lengths` are the planned rows; an engine that schedules fewer calls
    `limit`. `expected_accepted` is how many of them are likely accepted. `is_revealed` marks known drafts:
    `speculation.drafts` has the draft that is verified, padded to the planned length. `num_unfilled` counts
    the rows of known drafts that no drafter filled.
    """

    speculation: SpeculativeStep
    lengths: list[int]
    expected_accepted: list[float]
    is_revealed: list[bool]
    num_unfilled: int = 0

    def reveal(self, view: RequestView, proposals: dict[str, Draft], draft: Draft) -> None:
        """Set the draft of a request, looked up from the view."""
        index = self.speculation.index(view.id)
        if index is None or self.is_revealed[index]:
            return
        length = self.lengths[index]
        self.speculation.drafts[index] = pad_chain(draft, length, int(view.tokens[-1]))
        self.speculation.proposals[index] = proposals if length else {}
        self.is_revealed[index] = True
        self.num_unfilled += max(0, length - len(draft))

    def limit(self, index: int, length: int) -> None:
        """Lower the rows of a request to those that the engine scheduled.

        A sampled draft loses its last tokens by the room in the step, whatever their values.
        """
        draft = self.speculation.drafts[index]
        self.lengths[index] = length
        if length < len(draft):
            self.speculation.drafts[index] = as_chosen(draft).truncate(length)

    def filled_tokens(self, index: int) -> list[int]:
        """The draft tokens of a request without padding."""
        draft = self.speculation.drafts[index]
        num = draft.source.index(PADDING) if PADDING in draft.source else len(draft)
        tokens: list[int] = draft.tokens[:num].tolist()
        return tokens

    def use_draft(self, index: int, draft: Draft) -> None:
        """Verify this draft of one request, instead of the one that the worker looks up."""
        self.lengths[index] = len(draft)
        self.speculation.drafts[index] = draft
        self.speculation.proposals[index] = {draft.source[0]: draft}
        self.is_revealed[index] = True


class LookaheadPlanner:
    """Plans the draft lengths of a step while the step before is in flight.

    The drafters of the speculator are those of `chains`.
    """

    def __init__(self, speculator: Speculator, chains: ChainDrafter) -> None:
        self.speculator = speculator
        self.chains = chains
        self.forecast = RowForecast(speculator.controller)
        self.num_mismatches = 0
        self._shadows: dict[str, ShadowDraft] = {}
        self._in_flight: dict[str, LookaheadStep] = {}
        self._changes: list[Callable[[], None]] = []
        self._unlearned: list[tuple[LookaheadStep, dict[str, TopTokens]]] = []

    def plan(
        self, requests: Sequence[DraftRequest], in_flight: Sequence[int | None], rows: int, context: int = 0
    ) -> LookaheadStep:
        """Plan the draft lengths of a step that decodes these requests.

        The views have the tokens known now. `in_flight` is the number of draft rows of each request in the
        step in flight, 0 for one that emits a single token, and None without such a step: the draft is known
        then. `rows` are the rows of the new step without draft tokens, `context` its cached tokens.
        """
        began = time.perf_counter()
        self._learn_logits()
        speculation = self.speculator.begin_ahead(requests, rows, context)
        num_rows = np.array([NOT_IN_FLIGHT if num is None else num for num in in_flight], dtype=np.int64)
        should_draft = speculation.with_predictions(
            self.speculator.controller.should_draft(speculation.control)
        )
        looked_up = should_draft | (num_rows > 0)
        is_in_flight = num_rows != NOT_IN_FLIGHT
        proposals = self._look_up(requests, looked_up & is_in_flight)
        self._change_drafters()  # the worker has looked up the drafts of the step in flight, and no others
        known = self._look_up(requests, looked_up & ~is_in_flight)
        proposals = [own or other for own, other in zip(proposals, known, strict=True)]
        drafts = [merge_chains(found.values()) for found in proposals]
        self._learn(speculation, drafts, num_rows, looked_up)
        max_rows = np.array([self._max_rows(request) for request in requests], dtype=np.int64)
        planned = self._plan_rows(speculation, drafts, num_rows, np.where(should_draft, max_rows, 0))
        step = LookaheadStep(speculation, *planned, [False] * len(requests))
        for index, request in enumerate(requests):
            before = self._in_flight.pop(request.name, None)
            if num_rows[index] == NOT_IN_FLIGHT:
                before = step
            if before is not None and looked_up[index]:
                before.reveal(request.view, proposals[index], drafts[index])
            if not step.is_revealed[index]:
                self._in_flight[request.name] = step
        speculation.control.lookup_seconds += time.perf_counter() - began
        return step

    def _max_rows(self, request: DraftRequest) -> int:
        """The rows that lookups may fill: none for a request without lookup drafters."""
        is_looked_up = any(self.speculator.uses(request, name) for name in self.chains.drafters)
        return max(request.max_tokens, 0) if is_looked_up else 0

    def _look_up(self, requests: Sequence[DraftRequest], looked_up: BoolArray) -> list[dict[str, Draft]]:
        """The proposals for requests under the mask, by drafter."""
        indices = np.flatnonzero(looked_up).tolist()
        found = self.chains.look_up(
            [requests[index].view for index in indices], [requests[index].drafters for index in indices]
        )
        proposals: list[dict[str, Draft]] = [{} for _ in requests]
        for index, each in zip(indices, found, strict=True):
            proposals[index] = each
        return proposals

    def _learn(
        self, step: SpeculativeStep, drafts: Sequence[Draft], num_rows: IntArray, looked_up: BoolArray
    ) -> None:
        """Compare earlier shadow drafts with the tokens known since, and replace them by these drafts."""
        outcomes = ShadowOutcomes(len(drafts))
        for index, (request, draft) in enumerate(zip(step.requests, drafts, strict=True)):
            before, tokens = self._shadows.get(request.name), request.view.tokens
            clue = None
            if before is not None and len(tokens) > before.num_tokens:
                clue = outcomes.add(index, before, tokens[before.num_tokens :])
            if looked_up[index]:
                if clue is not None:
                    outcomes.add_found(index, clue, len(draft), max(request.max_tokens, 0))
                rows = max(int(num_rows[index]), 0)
                self._shadows[request.name] = ShadowDraft(len(tokens), draft, rows, clue)
        outcomes.record(step, self.forecast, self.speculator)

    def _plan_rows(
        self, step: SpeculativeStep, drafts: Sequence[Draft], in_flight: IntArray, max_rows: IntArray
    ) -> tuple[list[int], list[float]]:
        """The planned rows of each request, and how many of them are likely accepted."""
        sizes = np.array([len(draft) for draft in drafts], dtype=np.int64)
        max_rows = np.where(in_flight == NOT_IN_FLIGHT, np.minimum(max_rows, sizes), max_rows)
        if not max_rows.any():
            return [0] * len(drafts), [0.0] * len(drafts)
        controller, candidates = self.speculator.controller, self.speculator.merger.candidates(step, drafts)
        survivals = controller.estimate_survival(step.control, candidates)
        clues = np.array([first_survival(draft) for draft in drafts])
        acceptance, max_rows = self.forecast.acceptance(
            step.control, survivals, (sizes, in_flight, clues), max_rows
        )
        lengths: list[int] = controller.plan_rows(step.control, acceptance, max_rows).tolist()
        starts = (np.cumsum(max_rows) - max_rows).tolist()
        expected = [
            float(acceptance[start : start + num].sum()) for start, num in zip(starts, lengths, strict=True)
        ]
        return lengths, expected

    def observe(
        self, step: LookaheadStep, view: RequestView, output: Tokens, rows: TopRows | None = None
    ) -> None:
        """Record the output of a request's step; the view has the tokens before this output.

        `rows` are the likeliest next tokens at its rows, if they are recycled. Ignored if the step verified
        another draft than the shadow draft, which `num_mismatches` counts.
        """
        index = step.speculation.index(view.id)
        if index is None:
            return
        if self._in_flight.get(view.id) is step:
            del self._in_flight[view.id]
        if not step.is_revealed[index]:
            self._learn_logits(before=step)
            request = replace(step.speculation.requests[index], view=view)
            (proposals,) = self._look_up([request], np.array([step.lengths[index] > 0]))
            step.reveal(view, proposals, merge_chains(proposals.values()))
        draft = step.speculation.drafts[index]
        num_accepted = num_matching(draft, output[:-1])
        if num_accepted < len(output) - 1:
            self.num_mismatches += 1
            return
        if rows is not None:
            self._keep_logits(step, view, index, num_accepted, rows)
        verdict = Verdict(tuple(range(num_accepted)), int(output[num_accepted]))
        self.speculator.observe(step.speculation, view.id, verdict)

    def _keep_logits(
        self, step: LookaheadStep, view: RequestView, index: int, num_accepted: int, rows: TopRows
    ) -> None:
        """Keep the rows of a request's step until the lookups of the step have been made."""
        if not self._unlearned or self._unlearned[-1][0] is not step:
            self._unlearned.append((step, {}))
        chain = step.filled_tokens(index)
        found = chain_top_tokens(view.tokens, chain, rows)
        self._unlearned[-1][1][view.id] = learning_order(found, range(min(num_accepted, len(chain))))

    def _learn_logits(self, before: LookaheadStep | None = None) -> None:
        """Report the rows of earlier steps to the drafters, in the order in which the worker does."""
        while self._unlearned and self._unlearned[0][0] is not before:
            _, by_request = self._unlearned.pop(0)
            for name in sorted(by_request):
                self.chains.learn_logits(name, by_request[name])

    def close(self, step: LookaheadStep, seconds: float) -> Goodput | None:
        """End a step after its requests were observed; `seconds` is its duration in the worker."""
        speculation = step.speculation
        speculation.control.chosen = self.speculator.merger.candidates(speculation, speculation.drafts)
        return self.speculator.close(speculation, seconds)

    def forget(
        self, name: str, view: RequestView | None = None, drafters: tuple[str, ...] | None = None
    ) -> None:
        """Drop a request's state; with a view, its drafters see the end of its tokens first.

        The drafters forget it after the lookups of the next plan: the worker looked up the drafts of the step
        in flight before it knew that the request ended.
        """
        self.speculator.forget(name)
        self._shadows.pop(name, None)
        self._in_flight.pop(name, None)
        self.after_lookups(partial(self.chains.forget, name, view, drafters))

    def after_lookups(self, change: Callable[[], None]) -> None:
        """Change the drafters after the lookups of the next plan for the step in flight."""
        self._changes.append(change)

    def _change_drafters(self) -> None:
        for change in self._changes:
            change()
        self._changes.clear()
