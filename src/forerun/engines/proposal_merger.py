"""Merges the proposals of a request's drafters into one draft: a tree, or the best chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from forerun.control.candidates import Candidates, assign_kinds, drafter_survival
from forerun.control.controller import Controller
from forerun.drafters.tree_merge import best_path, merge
from forerun.engines.guarded_drafter import EMPTY_DRAFT
from forerun.engines.speculative_step import SpeculativeStep
from forerun.types import Draft


class ProposalMerger:
    """Merges proposals into trees or, without `trees`, into chains; the controller estimates their gains."""

    def __init__(self, controller: Controller, *, trees: bool) -> None:
        self.controller = controller
        self.trees = trees

    def merge(self, step: SpeculativeStep) -> None:
        """Set the draft of each request from its proposals."""
        if self.trees:
            for index, proposals in enumerate(step.proposals):
                tree = merge([with_estimates(draft) for draft in proposals.values()])
                step.drafts[index] = tree.truncate(max(step.requests[index].max_tokens, 0))
        else:
            self._merge_chains(step)

    def _merge_chains(self, step: SpeculativeStep) -> None:
        """The best chain of chosen tokens, or a sampled chain where that is better."""
        sampled: dict[str, dict[int, Draft]] = {}
        merged: list[int] = []
        for index, proposals in enumerate(step.proposals):
            chosen = []
            for name, draft in proposals.items():
                if draft.q:
                    sampled.setdefault(name, {})[index] = draft
                else:
                    chosen.append(draft)
            if len(chosen) == 1 and chosen[0].is_chain:
                (step.drafts[index],) = chosen
            elif chosen:
                step.drafts[index] = merge(list(map(with_estimates, chosen)))
                merged.append(index)
        self.keep_best_paths(step, merged)
        for name, drafts in sampled.items():
            self.offer_sampled(step, name, [drafts.get(i, EMPTY_DRAFT) for i in range(len(step.requests))])

    def keep_best_paths(self, step: SpeculativeStep, merged: Sequence[int]) -> None:
        """Replace the trees of these requests, by index, by their best paths, by calibrated survival."""
        if not merged:
            return
        candidates = Candidates.from_drafts(step.drafts, partial(self.controller.kind, step.control))
        survival = self.controller.estimate_survival(step.control, candidates)
        ends = np.cumsum([len(draft) for draft in step.drafts]).tolist()
        for index in merged:
            draft, end = step.drafts[index], ends[index]
            step.drafts[index] = best_path(draft, survival[end - len(draft) : end])

    def offer_sampled(self, step: SpeculativeStep, name: str, drafts: Sequence[Draft]) -> frozenset[str]:
        """Use sampled chains of the drafter `name` instead of other drafts; returns the requests that do.

        A request uses one if it has the higher expected gain, if its other draft has none, or if the request
        names this drafter alone. The choice never depends on the values of sampled tokens, and so not on the
        survival that the drafter states for them. A baseline step uses none, which is declared before the
        drafter samples.
        """
        adaptive = step.control.adaptive.tolist()
        offered = [
            draft if not (step.control.is_baseline and adaptive[index]) else EMPTY_DRAFT
            for index, draft in enumerate(drafts)
        ]
        if not any(map(len, offered)):
            return frozenset()
        sampled_gains = self._expected_gains(step, [replace(draft, survival=None) for draft in offered])
        other_gains = self._expected_gains(step, step.drafts)
        users = set()
        for index, draft in enumerate(offered):
            request = step.requests[index]
            is_better = sampled_gains[index] > other_gains[index] or not other_gains[index]
            if len(draft) and (is_better or request.drafters == (name,)):
                step.drafts[index] = step.proposals[index][name] = draft
                users.add(request.name)
        return frozenset(users)

    def _expected_gains(self, step: SpeculativeStep, drafts: Sequence[Draft]) -> list[float]:
        """The expected gain of each draft, in tokens."""
        gains: list[float] = self.controller.expected_gain(
            step.control, self.candidates(step, drafts)
        ).tolist()
        return gains

    def candidates(self, step: SpeculativeStep, drafts: Sequence[Draft]) -> Candidates:
        """The draft tokens of all requests."""
        if not any(map(len, drafts)):
            return Candidates.empty()
        kind = partial(self.controller.kind, step.control)
        if self.trees:
            return Candidates.from_drafts(drafts, kind)
        return Candidates.from_chains(
            np.concatenate([drafter_survival(draft) for draft in drafts if len(draft)], dtype=np.float64),
            np.array([len(draft) for draft in drafts], dtype=np.int64),
            assign_kinds([draft.source for draft in drafts], kind),
            np.array([len(draft) > 0 and bool(draft.q or draft.sampled[0]) for draft in drafts]),
        )

    def can_block_verify(self, step: SpeculativeStep, index: int) -> bool:
        """Whether a sampled chain of this request may be verified as a block.

        Where drafts are merged into trees, only if one drafter alone proposed: otherwise the values that were
        sampled decide whether the merged draft is a chain.
        """
        return not self.trees or len(step.proposals[index]) <= 1


def with_estimates(draft: Draft) -> Draft:
    """A draft of chosen tokens with a survival estimate for each."""
    if draft.survival is not None or draft.sampled.any():
        return draft
    survival = np.minimum.accumulate(drafter_survival(draft)).astype(np.float32)
    return replace(draft, survival=survival)
