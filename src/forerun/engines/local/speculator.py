"""Drafting for a batch: drafters side by side, merged into one tree per request, as deep as it pays."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from forerun.control.candidates import Candidates, drafter_survival, select_drafts
from forerun.control.controller import Controller, Step, warm_up
from forerun.control.step_cost import StepCost
from forerun.drafters.tree_merge import merge, verdict_for
from forerun.engines.guarded_drafter import MAX_PROPOSE_SECONDS, GuardedDrafter
from forerun.engines.local.running_request import RunningRequest
from forerun.errors import ForerunError, InvalidRequest
from forerun.types import Draft, Drafter, RequestView, Verdict

MODEL: Final = "model"
"""The drafter that runs a draft model."""


class TreeSpeculator:
    """Merges the drafts of several drafters and lets the controller choose among their draft tokens.

    A drafter is expensive if it takes time per draft token or samples its tokens. The controller limits the
    draft length of an expensive drafter before it drafts; from the other drafters it chooses afterwards.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        default_drafters: Sequence[str] | None,
        cost: StepCost,
        vocab_size: int,
        *,
        adaptive: bool = True,
    ) -> None:
        self.controller = Controller(cost)
        warm_up()
        self.adaptive = adaptive
        self.default_drafters = tuple(drafters) if default_drafters is None else tuple(default_drafters)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.errors: Counter[str] = Counter()
        self.drafters = {
            name: GuardedDrafter(
                name,
                drafter,
                self,
                vocab_size,
                trees=True,
                max_seconds=math.inf if name == MODEL else MAX_PROPOSE_SECONDS,  # it may prefill a prompt
            )
            for name, drafter in drafters.items()
        }
        self._proposals: dict[str, dict[str, Draft]] = {}
        self._outcomes: defaultdict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        self._expensive = {MODEL}

    def add_seconds(self, drafter: str, seconds: float) -> None:
        """Add the duration of a drafter's call."""
        self.seconds[drafter] += seconds

    def add_error(self, drafter: str) -> None:
        """Count an error of a drafter."""
        self.errors[drafter] += 1

    def admit(self, running: RunningRequest) -> None:
        """Start tracking a request."""
        greedy = running.request.sampling.greedy
        self.controller.admit(running.request.id, greedy=greedy, adaptive=self.adaptive)

    def check_known(self, names: Sequence[str]) -> None:
        """Raise if the engine lacks one of these drafters."""
        unknown = sorted(set(names) - set(self.drafters))
        if unknown:
            known = ", ".join(self.drafters) or "none"
            raise InvalidRequest(f"unknown drafter {unknown[0]!r}; this engine has {known}")

    def draft(
        self, decoding: Sequence[RunningRequest], max_draft: Sequence[int], num_rows: int, context: int
    ) -> tuple[Step, list[Draft]]:
        """One draft tree per request, of at most `max_draft` tokens.

        `num_rows` are the rows of the forward pass without draft tokens, `context` its cached tokens.
        """
        step = self.controller.begin_step([each.request.id for each in decoding], num_rows, context)
        pays = self.controller.should_draft(step).tolist()
        proposals: list[dict[str, Draft]] = [{} for _ in decoding]
        for name in self.drafters:
            budgets = [
                limit if self._uses(each, name) and (lookup or name in self._expensive) else 0
                for each, limit, lookup in zip(decoding, max_draft, pays, strict=True)
            ]
            if name in self._expensive:
                budgets = self._planned_budgets(step, name, decoding, budgets)
            for i, draft in self._propose(step, name, decoding, budgets).items():
                proposals[i][name] = _with_estimates(draft)
        if any(draft.sampled.any() for proposal in proposals for draft in proposal.values()):
            step.is_baseline = False  # a drafter sampled for the first time: its draft tokens are verified
        self._proposals = {each.request.id: own for each, own in zip(decoding, proposals, strict=True)}
        trees = [
            merge(list(proposal.values())).truncate(max(limit, 0))
            for proposal, limit in zip(proposals, max_draft, strict=True)
        ]
        return step, self._choose(step, trees)

    def _propose(
        self, step: Step, name: str, decoding: Sequence[RunningRequest], budgets: Sequence[int]
    ) -> dict[int, Draft]:
        """One drafter's drafts, by the index of the request; its time goes to the controller."""
        indices = [i for i, budget in enumerate(budgets) if budget > 0]
        before = self.seconds[name]
        drafts = self.drafters[name].propose(
            [decoding[i].view for i in indices], [budgets[i] for i in indices]
        )
        seconds = self.seconds[name] - before
        if any(draft.sampled.any() for draft in drafts):
            self._expensive.add(name)
        if name in self._expensive:
            depth = max((draft.depth for draft in drafts), default=0)
            self.controller.record_draft_time(step, planned_source(name), depth, seconds)
        else:
            step.lookup_seconds += seconds
        return dict(zip(indices, drafts, strict=True))

    def _planned_budgets(
        self, step: Step, name: str, decoding: Sequence[RunningRequest], max_draft: Sequence[int]
    ) -> list[int]:
        """The budgets of an expensive drafter: the planned draft length times the branches of its trees."""
        lengths = self.controller.draft_lengths(
            step, planned_source(name), np.array(max_draft, dtype=np.int64)
        )
        branches = getattr(self.drafters[name].drafter, "branches", 1)
        return [
            min(length * (branches if each.request.sampling.greedy else 1), limit)
            for length, each, limit in zip(lengths.tolist(), decoding, max_draft, strict=True)
        ]

    def _choose(self, step: Step, trees: Sequence[Draft]) -> list[Draft]:
        """The part of each tree that the controller wants verified."""
        candidates = Candidates.from_drafts(trees, partial(self.controller.kind, step))
        return select_drafts(trees, self.controller.choose(step, candidates))

    def survivals(self, step: Step, drafts: Sequence[Draft]) -> list[tuple[float, ...]]:
        """The calibrated survival probability of every draft token, with which the controller chose it.

        Must be called before the controller learns from the step.
        """
        values = self.controller.estimate_survival(step, step.chosen).tolist() if len(step.chosen) else []
        ends = np.cumsum([len(draft) for draft in drafts]).tolist()
        return [tuple(values[end - len(draft) : end]) for draft, end in zip(drafts, ends, strict=True)]

    def can_block_verify(self, running: RunningRequest) -> bool:
        """Whether a sampled chain of this request may be verified as a block.

        Only if one drafter alone proposed for it. This does not depend on the values that were sampled.
        """
        return sum(len(draft) > 0 for draft in self._proposals.get(running.request.id, {}).values()) <= 1

    def _uses(self, running: RunningRequest, name: str) -> bool:
        """Whether a request uses this drafter."""
        named = running.request.drafters
        return name in (self.default_drafters if named is None else named)

    def observe(self, running: RunningRequest, draft: Draft, verdict: Verdict) -> None:
        """Report a verdict to each drafter that proposed, in terms of its own draft."""
        tokens = verdict.tokens(draft)
        for name, proposed in self._proposals.pop(running.request.id, {}).items():
            own = verdict_for(proposed, tokens)
            self.drafters[name].learn(running.request.id, proposed, own)
            if name in self._expensive:
                self._outcomes[name][running.request.id] = (proposed.depth, len(own.accepted))

    def end_step(
        self,
        step: Step,
        request_ids: Sequence[str],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict | ForerunError],
        seconds: float,
    ) -> None:
        """Report the outcome and the duration of a step to the controller."""
        accepted, verified = [], []
        for draft, verdict in zip(drafts, verdicts, strict=True):
            own = np.zeros(len(draft), dtype=bool)
            if isinstance(verdict, Verdict):
                own[list(verdict.accepted)] = True
            accepted.append(own)
            verified.append(np.full(len(draft), isinstance(verdict, Verdict)))
        for name, outcomes in self._outcomes.items():
            pairs = [outcomes.get(each, (0, 0)) for each in request_ids]
            lengths, num_accepted = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
            self.controller.record_accepted(step, planned_source(name), lengths, num_accepted)
        self._outcomes.clear()
        empty = np.zeros(0, dtype=bool)
        self.controller.record_step(
            step, np.concatenate([empty, *accepted]), seconds, np.concatenate([empty, *verified])
        )

    def forget(self, view: RequestView) -> None:
        """Drop a finished request; its drafters see the end of its text first."""
        self._proposals.pop(view.id, None)
        self.controller.forget(view.id)
        for drafter in self.drafters.values():
            drafter.forget(view.id, view)


def planned_source(name: str) -> str:
    """The source under which the controller plans a drafter's draft length, before it drafts."""
    return f"{name}, ahead"


def _with_estimates(draft: Draft) -> Draft:
    """A draft of chosen tokens with a survival estimate for each."""
    if draft.evidence is not None or draft.sampled.any():
        return draft
    survivals = np.minimum.accumulate(drafter_survival(draft)).astype(np.float32)
    return replace(draft, evidence=survivals[:, None])
