"""Draft chains as a pure function of tokens and configuration, for drafting away from the controller.

Under asynchronous scheduling the worker looks up the draft of a step, and the scheduler looks up the same
draft one step later, for its statistics. Both use a `ChainDrafter`, and so does every tensor-parallel rank:
neither a clock nor the controller influences a draft.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from forerun.drafters.tree_merge import best_path, merge
from forerun.engines.guarded_drafter import EMPTY_DRAFT, DrafterCounters, DraftFormat, GuardedDrafter
from forerun.engines.proposal_merger import with_estimates
from forerun.types import Draft, Drafter, RequestView, TopTokens, Verdict

MAX_LOOKUP: Final = 129
"""Tokens that a lookup finds at most, unless the maximum draft length is larger."""

PADDING: Final = "padding"
"""The source of the tokens in planned rows that no drafter fills."""

PADDING_ACCEPTANCE: Final = 0.01
"""The stated acceptance probability of such a token; the controller calibrates it."""


class ChainDrafter:
    """Proposes one chain per request from all its drafters, merged by the survival that they state.

    Every lookup has the same budget, `max_lookup`, and the chain is then truncated. A chain of a small budget
    is therefore a prefix of that of a large one. Lookups with the small budget would not guarantee this: the
    best path of a merged tree depends on the depth of its branches. With the same lookup, a scheduler sees
    beyond the `max_draft` tokens of a step in flight and its bonus token.

    Drafts agree between processes if the drafters are deterministic and see the same requests. With
    `share_outputs`, `forget` must be called between the same two proposals, with the same tokens.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        vocab_size: int,
        *,
        max_draft: int,
        default_drafters: Sequence[str] | None = None,
        counters: DrafterCounters,
        logger: logging.Logger | None = None,
    ) -> None:
        draft_format = DraftFormat(vocab_size, trees=False, q=False)
        self.max_lookup = max(max_draft, min(2 * max_draft + 1, MAX_LOOKUP))
        self.default_drafters = tuple(drafters if default_drafters is None else default_drafters)
        self.drafters = {
            name: GuardedDrafter(name, drafter, counters, draft_format, max_seconds=math.inf, logger=logger)
            for name, drafter in drafters.items()
        }
        self._drafters_of: dict[str, set[str]] = {}

    def propose(
        self,
        views: Sequence[RequestView],
        budgets: Sequence[int],
        drafters: Sequence[tuple[str, ...] | None],
    ) -> list[Draft]:
        """One chain per view, of at most its budget, from its drafters or else the default ones.

        A view without a budget is not looked up. Its drafters read the skipped tokens in the next lookup.
        """
        active = [index for index, budget in enumerate(budgets) if budget > 0]
        proposals = self.look_up([views[index] for index in active], [drafters[index] for index in active])
        drafts = [EMPTY_DRAFT] * len(views)
        for index, found in zip(active, proposals, strict=True):
            drafts[index] = merge_chains(found.values()).truncate(budgets[index])
        return drafts

    def look_up(
        self, views: Sequence[RequestView], drafters: Sequence[tuple[str, ...] | None]
    ) -> list[dict[str, Draft]]:
        """The proposals for each view by drafter, of at most `max_lookup` tokens; empty ones are left out."""
        proposals: list[dict[str, Draft]] = [{} for _ in views]
        chosen = [self.default_drafters if names is None else names for names in drafters]
        for name, drafter in self.drafters.items():
            users = [index for index, names in enumerate(chosen) if name in names]
            for index in users:
                self._drafters_of.setdefault(views[index].id, set()).add(name)
            found = drafter.propose([views[index] for index in users], [self.max_lookup] * len(users))
            for index, draft in zip(users, found, strict=True):
                if len(draft):
                    proposals[index][name] = draft
        return proposals

    def learn(self, name: str, draft: Draft, verdict: Verdict) -> None:
        """Report the verdict on a request's draft to its drafters.

        Drafters see accepted tokens in the next view anyway. The report matters only to drafters that adapt
        to verdicts; then every process must report the same verdicts between the same two proposals.
        """
        for drafter in sorted(self._drafters_of.get(name, ())):
            self.drafters[drafter].learn(name, draft, verdict)

    @property
    def learns_logits(self) -> bool:
        """Whether any drafter learns from the target's logits."""
        return any(drafter.learns_logits for drafter in self.drafters.values())

    def learn_logits(self, name: str, top_tokens: TopTokens) -> None:
        """Report the likeliest next tokens at the rows of a step to a request's drafters.

        Every process must report the same ones between the same two proposals.
        """
        for drafter in sorted(self._drafters_of.get(name, ())):
            self.drafters[drafter].learn_logits(name, top_tokens)

    def forget(
        self, name: str, view: RequestView | None = None, drafters: tuple[str, ...] | None = None
    ) -> None:
        """Drop a request's state; with a view, its drafters see the end of its tokens first.

        The view of a finished request is what `share_outputs` stores, whether or not it was ever looked up.
        """
        names = self._drafters_of.pop(name, set())
        if view is not None:
            names |= set(self.default_drafters if drafters is None else drafters) & self.drafters.keys()
        for drafter in sorted(names):
            self.drafters[drafter].forget(name, view)


def merge_chains(proposals: Iterable[Draft]) -> Draft:
    """The chain that emits most tokens in expectation, by the survival that the drafters state."""
    drafts = list(proposals)
    if len(drafts) == 1 and drafts[0].is_chain:
        return drafts[0]
    tree = merge([with_estimates(draft) for draft in drafts])
    if tree.is_chain or tree.survival is None:
        return tree
    return best_path(tree, tree.survival.astype(np.float64))


def pad_chain(draft: Draft, length: int, token: int) -> Draft:
    """The chain truncated to `length` tokens, or filled up to it with copies of `token`."""
    num = length - len(draft)
    if num <= 0:
        return draft.truncate(length)
    survival = with_estimates(draft).survival if len(draft) else np.ones(0, dtype=np.float32)
    assert survival is not None, "chosen tokens have estimates"
    last = float(survival[-1]) if len(draft) else 1.0
    padding = last * np.power(PADDING_ACCEPTANCE, np.arange(1, num + 1))
    chain = Draft.chain(
        np.concatenate([draft.tokens, np.full(num, token, dtype=np.int64)]),
        survival=np.concatenate([survival, padding.astype(np.float32)]),
    )
    return replace(chain, source=(*(draft.source or ("",) * len(draft)), *(PADDING,) * num))
