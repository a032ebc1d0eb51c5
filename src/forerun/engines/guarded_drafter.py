"""A drafter that is watched: whatever it does, the worst is that nobody guesses.

Errors are counted and logged once. A drafter that took very long is not asked again for a hundred times as
long, so that it costs at most one part in a hundred.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from forerun.errors import InvalidDraft
from forerun.types import Draft, Drafter, RequestView, Verdict

MAX_PROPOSE_SECONDS: Final = 1.0
"""Seconds that a call may take; drafters that look text up take microseconds."""

SUSPENSION_FACTOR: Final = 100.0

NOTHING: Final = Draft.chain([])


class DrafterCounters(Protocol):
    """Who keeps count of what drafters cost."""

    def add_seconds(self, drafter: str, seconds: float) -> None:
        """A drafter took so long."""

    def add_error(self, drafter: str) -> None:
        """A drafter failed."""


class GuardedDrafter:
    """A drafter by name, for an engine that checks chains over a vocabulary, or with `trees` those too."""

    def __init__(
        self,
        name: str,
        drafter: Drafter,
        counts: DrafterCounters,
        vocab_size: int,
        *,
        trees: bool = False,
        too_long: float = MAX_PROPOSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        logger: logging.Logger | None = None,
    ) -> None:
        self.name = name
        self.drafter = drafter
        self.counts = counts
        self.vocab_size = vocab_size
        self.trees = trees
        self.too_long = too_long
        self.clock = clock
        self.logger = logger or logging.getLogger("forerun")
        self._rests_until = -1.0
        self._complained = False

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """A draft for every view, of at most its budget; nothing where the drafter is at fault."""
        began = self.clock()
        if began < self._rests_until or not views:
            return [NOTHING] * len(views)
        try:
            drafts = self.drafter.propose(views, [max(budget, 0) for budget in budgets])
            if len(drafts) != len(views):
                raise InvalidDraft(f"{len(views)} requests were shown and {len(drafts)} drafts came back")
            return [self._sound(draft, budget) for draft, budget in zip(drafts, budgets, strict=True)]
        except Exception:
            self._count("guessing failed")
            return [NOTHING] * len(views)
        finally:
            self._time(self.clock() - began)

    def learn(self, name: str, draft: Draft, verdict: Verdict) -> None:
        """Tell the drafter what became of a draft."""
        try:
            self.drafter.learn(name, draft, verdict)
        except Exception:
            self._count("learning failed")

    def forget(self, name: str, view: RequestView | None = None) -> None:
        """A request is over; with a view, the drafter sees the end of its text first."""
        if view is not None:
            self.propose([view], [0])
        try:
            self.drafter.forget(name)
        except Exception:
            self._count("forgetting failed")

    def _sound(self, draft: Draft, budget: int) -> Draft:
        """The draft if the engine can check it, the model knows its tokens and it is not too long."""
        try:
            if not len(draft):
                return NOTHING
            draft.check(self.vocab_size)
            if len(draft.source) != len(draft) or "" in draft.source:
                draft = replace(draft, source=(self.name,) * len(draft))
            _demand_evidence(draft)
            if len(draft) > max(budget, 0):
                raise InvalidDraft(f"{len(draft)} guesses came for a budget of {budget}")
            if not self.trees and not draft.is_chain:
                raise InvalidDraft("a tree came back; this engine checks chains")
        except Exception:
            self._count("a draft was unsound")
            return NOTHING
        return draft

    def _time(self, seconds: float) -> None:
        self.counts.add_seconds(self.name, seconds)
        if seconds > self.too_long:
            self._rests_until = self.clock() + SUSPENSION_FACTOR * seconds
            self.counts.add_error(self.name)
            self.logger.warning(
                "the drafter %s took %.1f s and is not asked for %.0f s",
                self.name,
                seconds,
                SUSPENSION_FACTOR * seconds,
            )

    def _count(self, what: str) -> None:
        """Count it, and say it once, with the traceback."""
        self.counts.add_error(self.name)
        if not self._complained:
            self._complained = True
            self.logger.exception(
                "the drafter %s: %s; decoding goes on without, and later errors are only counted",
                self.name,
                what,
            )


def _demand_evidence(draft: Draft) -> None:
    """Raise where the evidence is not a row of numbers for each node, as what is decided from it needs."""
    evidence = draft.evidence
    if evidence is None:
        return
    if evidence.ndim != 2 or len(evidence) != len(draft) or not evidence.shape[1]:
        raise InvalidDraft(f"evidence of shape {evidence.shape} came with {len(draft)} guesses")
    if not math.isfinite(sum(evidence[:, 0].tolist())):
        raise InvalidDraft("the estimated survival of a guess is NaN or infinite")
