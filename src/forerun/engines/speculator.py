"""Drafting for the requests of an engine: one lifecycle for every engine.

    step = speculator.draft(requests, rows, context)   # all drafters propose; one merged draft per request
    speculator.choose(step)                            # keep the draft tokens that are worth verifying
    speculator.observe(step, name, verdict)            # after verification, once per request
    speculator.close(step, seconds)                    # the controller learns from the outcomes and the time
    speculator.forget(name, view)                      # when a request ends

Between `draft` and `choose` an engine may replace entries of `step.drafts`, and offer drafts of a draft model
that it runs itself (`merger.offer_sampled`). An engine whose draft model runs at the end of a step, for the
next one, asks `plan_lengths` beforehand.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence, Set
from typing import Final

import numpy as np

from forerun.control.accounting import Goodput
from forerun.control.candidates import select_drafts
from forerun.control.controller import Controller, warm_up
from forerun.control.step_cost import StepCost
from forerun.engines.guarded_drafter import (
    MAX_PROPOSE_SECONDS,
    DrafterCounters,
    DraftFormat,
    GuardedDrafter,
)
from forerun.engines.proposal_merger import ProposalMerger
from forerun.engines.speculative_step import DraftRequest, SpeculativeStep
from forerun.engines.top_token_rows import learning_order
from forerun.errors import InvalidRequest
from forerun.types import BoolArray, Drafter, RequestView, TopTokens, Verdict

MODEL: Final = "model"
"""The drafter that runs a draft model."""


class Speculator:
    """Drafts for the requests of one engine, and tells its drafters and its controller the outcomes.

    Every drafter of a request proposes, and the proposals are merged into one draft of the engine's format. A
    drafter is planned if it samples its tokens or takes time per token: the controller sets its draft length
    before it drafts. From the other drafters the controller chooses afterwards. Drafters that are guarded
    already, such as those of a `ChainDrafter`, are used as they are.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        cost: StepCost,
        draft_format: DraftFormat,
        *,
        default_drafters: Sequence[str] | None = None,
        adaptive: bool = True,
        counters: DrafterCounters,
        logger: logging.Logger | None = None,
    ) -> None:
        self.controller = Controller(cost)
        warm_up()
        self.merger = ProposalMerger(self.controller, trees=draft_format.trees)
        self.adaptive = adaptive
        self.default_drafters = tuple(drafters if default_drafters is None else default_drafters)
        models = [MODEL, *(name for name in drafters if name.startswith(f"{MODEL} "))]
        self.drafters = {
            name: drafter
            if isinstance(drafter, GuardedDrafter)
            else GuardedDrafter(
                name,
                drafter,
                counters,
                draft_format,
                max_seconds=math.inf if name in models else MAX_PROPOSE_SECONDS,  # it may prefill a prompt
                logger=logger,
            )
            for name, drafter in drafters.items()
        }
        self._learning_from_logits = [name for name, each in self.drafters.items() if each.learns_logits]
        self._planned = models
        self._drafters_of: dict[str, set[str]] = {}

    @property
    def tracked(self) -> Set[str]:
        """The requests with live speculation state."""
        return self._drafters_of.keys()

    def check_known(self, names: Sequence[str]) -> None:
        """Raise `InvalidRequest` if the engine lacks one of these drafters."""
        unknown = sorted(set(names) - set(self.drafters))
        if unknown:
            known = ", ".join(self.drafters) or "none"
            raise InvalidRequest(f"unknown drafter {unknown[0]!r}; this engine has {known}")

    def uses(self, request: DraftRequest, drafter: str) -> bool:
        """Whether a drafter proposes for a request."""
        return drafter in (self.default_drafters if request.drafters is None else request.drafters)

    def draft(self, requests: Sequence[DraftRequest], rows: int, context: int = 0) -> SpeculativeStep:
        """Begin a step that decodes these requests, with one merged draft for each.

        `rows` are the rows of the forward pass without draft tokens, `context` its cached tokens. Requests
        for which the controller expects no gain from looking up a draft get none; their drafters catch up on
        the skipped tokens at the next proposal.
        """
        began = time.perf_counter()
        step = SpeculativeStep(self.controller.begin_step(self._admit(requests), rows, context), requests)
        self._register_drafters(requests)
        should_draft = step.with_predictions(self.controller.should_draft(step.control)).tolist()
        names = [name for name in self._planned if name in self.drafters]
        if any(should_draft):
            names, step.wants_logits = [*self.drafters], self._logits_wanted(step, should_draft)
        for name in names:
            self._propose(step, name, should_draft)
        if any(step.proposals):
            self.merger.merge(step)
        step.control.lookup_seconds += time.perf_counter() - began - step.control.draft_seconds
        return step

    def begin_ahead(self, requests: Sequence[DraftRequest], rows: int, context: int = 0) -> SpeculativeStep:
        """Begin a step, without drafts, while the step before is in flight."""
        names = self._admit(requests)
        return SpeculativeStep(self.controller.begin_step_ahead(names, rows, context), requests)

    def _admit(self, requests: Sequence[DraftRequest]) -> list[str]:
        """Start tracking the requests that are new; returns the ids of all."""
        for request in requests:
            if request.name not in self._drafters_of:
                self._drafters_of[request.name] = set()
                adaptive = self.adaptive if request.adaptive is None else request.adaptive
                self.controller.admit(request.name, greedy=request.greedy, adaptive=adaptive)
        return [request.name for request in requests]

    def _register_drafters(self, requests: Sequence[DraftRequest]) -> None:
        """Remember the drafters of each request, which see its last tokens even if they never propose."""
        for request in requests:
            if not self._drafters_of[request.name]:
                used = (name for name in self.drafters if self.uses(request, name))
                self._drafters_of[request.name].update(used)

    def _logits_wanted(self, step: SpeculativeStep, should_draft: Sequence[bool]) -> frozenset[int]:
        """The requests that were looked up by a drafter that learns from logits."""
        return frozenset(
            index
            for name in self._learning_from_logits
            for index, request in enumerate(step.requests)
            if should_draft[index] and request.max_tokens > 0 and self.uses(request, name)
        )

    def _propose(self, step: SpeculativeStep, name: str, should_draft: Sequence[bool]) -> None:
        """Add the proposals of one drafter to the step; a planned drafter's time goes to the controller."""
        drafter = self.drafters[name]
        users = [index for index, request in enumerate(step.requests) if self.uses(request, name)]
        if name in self._planned:
            budgets = self._planned_budgets(step, name, users)
        else:
            budgets = [step.requests[index].max_tokens if should_draft[index] else 0 for index in users]
        if self.merger.trees:
            left = len(self._planned) - self._planned.index(name) if name in self._planned else 1
            budgets = [min(each, step.room(index, left)) for index, each in zip(users, budgets, strict=True)]
        active = [(index, budget) for index, budget in zip(users, budgets, strict=True) if budget > 0]
        drafts = drafter.propose(
            [step.requests[index].view for index, _ in active], [budget for _, budget in active]
        )
        for (index, _), draft in zip(active, drafts, strict=True):
            if len(draft):
                step.proposals[index][name] = draft
        if any(draft.q for draft in drafts):
            self._planned += [name] if name not in self._planned else []
            step.control.is_baseline = False  # its draft tokens are verified, even where it sampled unplanned
        if name in self._planned:
            depth = max((draft.depth for draft in drafts), default=0)
            self.record_draft_time(step, name, depth, drafter.last_seconds)

    def _planned_budgets(self, step: SpeculativeStep, name: str, users: Sequence[int]) -> list[int]:
        """The budgets of a planned drafter: the planned draft length times the branches of its trees."""
        limits = np.zeros(len(step.requests), dtype=np.int64)
        limits[users] = [max(0, step.requests[index].max_tokens) for index in users]
        lengths = self.controller.draft_lengths(step.control, planned_source(name), limits).tolist()
        branches = getattr(self.drafters[name].drafter, "branches", 1) if self.merger.trees else 1
        trees = [branches if step.requests[index].has_chosen_drafts else 1 for index in users]
        return [min(lengths[i] * num, int(limits[i])) for i, num in zip(users, trees, strict=True)]

    def choose(self, step: SpeculativeStep) -> None:
        """Truncate every draft to the tokens that the controller chooses."""
        began = time.perf_counter()
        if any(map(len, step.drafts)):
            step.keep_first_tokens()
            keep = self.controller.choose(step.control, self.merger.candidates(step, step.drafts))
            step.drafts = select_drafts(step.drafts, keep)
        step.control.lookup_seconds += time.perf_counter() - began

    def survivals(self, step: SpeculativeStep) -> list[tuple[float, ...]]:
        """The calibrated survival probability of every draft token, with which the controller chose it.

        Must be called before `close`.
        """
        chosen = step.control.chosen
        values = self.controller.estimate_survival(step.control, chosen).tolist() if len(chosen) else []
        ends = np.cumsum([len(draft) for draft in step.drafts]).tolist()
        return [tuple(values[end - len(draft) : end]) for draft, end in zip(step.drafts, ends, strict=True)]

    def observe(
        self,
        step: SpeculativeStep,
        name: str,
        verdict: Verdict,
        num_verified: int | None = None,
        top_tokens: TopTokens | None = None,
        nodes: BoolArray | None = None,
    ) -> None:
        """Record the verdict on a request's draft, and report it to each drafter in terms of its own draft.

        Its leading `num_verified` tokens, by default all, or the `nodes` under a mask were verified.
        `top_tokens` are the likeliest next tokens after the last committed token and each of them.
        """
        index = step.index(name)
        if index is None or name not in self._drafters_of:
            return
        step.record_verdict(index, verdict, num_verified, nodes)
        if top_tokens is not None:
            ordered = learning_order(top_tokens, verdict.accepted)
            for each in self._learning_from_logits:
                if each in self._drafters_of[name]:
                    self.drafters[each].learn_logits(name, ordered)
        for each, (part, own_verdict) in step.outcomes[index].items():
            if each in self.drafters:
                self.drafters[each].learn(name, part, own_verdict)

    def close(self, step: SpeculativeStep, seconds: float) -> Goodput | None:
        """End a step after its requests were observed; `seconds` is its duration, drafting included."""
        for name in self._planned if any(step.outcomes) else ():
            lengths, num_accepted = step.outcomes_of(name)
            if lengths.any():
                source = planned_source(name)
                self.controller.record_accepted(step.control, source, lengths, num_accepted)
        accepted, verified = step.outcome_masks()
        if step.first_tokens:
            self.controller.accounting.record_matches(step.control, step.first_token_matches())
        return self.controller.record_step(step.control, accepted, seconds, verified)

    def num_steps_without_lookup(self, step: SpeculativeStep) -> int:
        """After `close`: the number of steps that need no `draft`, if the same requests go on.

        An engine that skips them calls `record_skipped`.
        """
        needs_lookup = step.has_prediction or any(name in self.drafters for name in self._planned)
        return 0 if needs_lookup else self.controller.num_steps_without_lookup(step.control)

    def record_skipped(self, step: SpeculativeStep, num_steps: int, seconds: float) -> None:
        """Record steps without lookups, of the requests of an earlier step, which took `seconds` in all."""
        self.controller.record_skipped(step.control, num_steps, seconds)

    def plan_lengths(
        self,
        requests: Sequence[DraftRequest],
        drafter: str,
        max_lengths: Sequence[int],
        context: int,
        num_prefill_tokens: int,
    ) -> list[int]:
        """Draft lengths for a drafter that runs at the end of a step, for the next step of these requests.

        The drafter prefills `num_prefill_tokens` prompt tokens first.
        """
        following = self.controller.begin_step(self._admit(requests), len(requests), context)
        following.is_baseline = False
        limits = np.array(max_lengths, dtype=np.int64)
        lengths: list[int] = self.controller.draft_lengths(
            following, planned_source(drafter), limits, num_prefill_tokens
        ).tolist()
        return lengths

    def record_draft_time(
        self,
        step: SpeculativeStep,
        drafter: str,
        num_passes: int,
        seconds: float,
        num_prefill_tokens: int = 0,
    ) -> None:
        """Record the seconds that a planned drafter took for `num_passes` forward passes and its prefill."""
        source = planned_source(drafter)
        self.controller.record_draft_time(step.control, source, num_passes, seconds, num_prefill_tokens)

    def forget(self, name: str, view: RequestView | None = None) -> None:
        """Drop a request's state; with a view, its drafters see the end of its tokens first."""
        if name in self._drafters_of:
            self.controller.forget(name)
        for drafter in self._drafters_of.pop(name, ()):
            self.drafters[drafter].forget(name, view)


def planned_source(name: str) -> str:
    """The source under which the controller plans a drafter's draft length, before it drafts."""
    return f"{name}, ahead"
