"""A circuit breaker around a drafter: its faults cost draft tokens and never reach a request.

Errors are counted, and the first one is logged. A drafter whose call takes longer than `max_seconds` is
suspended for a hundred times the duration of that call, so that slow calls cost at most 1 % of the time.
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
"""The maximum duration of a call; lookup drafters take microseconds."""

SUSPENSION_FACTOR: Final = 100.0
"""The duration of a suspension over that of the slow call."""

EMPTY_DRAFT: Final = Draft.chain([])


class DrafterCounters(Protocol):
    """Counts the time and the errors of drafters."""

    def add_seconds(self, drafter: str, seconds: float) -> None:
        """Add the duration of a drafter's call."""

    def add_error(self, drafter: str) -> None:
        """Count an error of a drafter."""


class GuardedDrafter:
    """Guards one drafter. The engine verifies chains, and trees if `trees` is set."""

    def __init__(
        self,
        name: str,
        drafter: Drafter,
        counters: DrafterCounters,
        vocab_size: int,
        *,
        trees: bool = False,
        max_seconds: float = MAX_PROPOSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        logger: logging.Logger | None = None,
    ) -> None:
        self.name = name
        self.drafter = drafter
        self.counters = counters
        self.vocab_size = vocab_size
        self.trees = trees
        self.max_seconds = max_seconds
        self.clock = clock
        self.logger = logger or logging.getLogger("forerun")
        self._suspended_until = -1.0
        self._logged = False

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One draft per view, of at most its budget; empty where the drafter fails or is suspended."""
        began = self.clock()
        if began < self._suspended_until or not views:
            return [EMPTY_DRAFT] * len(views)
        try:
            drafts = self.drafter.propose(views, [max(budget, 0) for budget in budgets])
            if len(drafts) != len(views):
                raise InvalidDraft(f"got {len(drafts)} drafts for {len(views)} requests; expected one each")
            return [self._checked(draft, budget) for draft, budget in zip(drafts, budgets, strict=True)]
        except Exception:
            self._record_error("propose() failed")
            return [EMPTY_DRAFT] * len(views)
        finally:
            self._record_time(self.clock() - began)

    def learn(self, name: str, draft: Draft, verdict: Verdict) -> None:
        """Report the verdict on a draft to the drafter."""
        try:
            self.drafter.learn(name, draft, verdict)
        except Exception:
            self._record_error("learn() failed")

    def forget(self, name: str, view: RequestView | None = None) -> None:
        """Drop a finished request; with a view, the drafter sees the end of its text first."""
        if view is not None:
            self.propose([view], [0])
        try:
            self.drafter.forget(name)
        except Exception:
            self._record_error("forget() failed")

    def _checked(self, draft: Draft, budget: int) -> Draft:
        """The draft, or an empty one if it is invalid, over budget, or a tree the engine cannot verify."""
        try:
            if not len(draft):
                return EMPTY_DRAFT
            draft.check(self.vocab_size)
            if len(draft.source) != len(draft) or "" in draft.source:
                draft = replace(draft, source=(self.name,) * len(draft))
            _check_evidence(draft)
            if len(draft) > max(budget, 0):
                raise InvalidDraft(f"got {len(draft)} draft tokens; the budget is {budget}")
            if not self.trees and not draft.is_chain:
                raise InvalidDraft("got a tree; this engine verifies chains")
        except Exception:
            self._record_error("propose() returned an invalid draft")
            return EMPTY_DRAFT
        return draft

    def _record_time(self, seconds: float) -> None:
        self.counters.add_seconds(self.name, seconds)
        if seconds > self.max_seconds:
            self._suspended_until = self.clock() + SUSPENSION_FACTOR * seconds
            self.counters.add_error(self.name)
            self.logger.warning(
                "drafter %s took %.1f s; suspended for %.0f s",
                self.name,
                seconds,
                SUSPENSION_FACTOR * seconds,
            )

    def _record_error(self, what: str) -> None:
        """Count an error; log the first one, with its traceback."""
        self.counters.add_error(self.name)
        if not self._logged:
            self._logged = True
            self.logger.exception(
                "drafter %s: %s; requests decode without its draft tokens, later errors are counted only",
                self.name,
                what,
            )


def _check_evidence(draft: Draft) -> None:
    """Raise unless the evidence is one row of numbers per draft token, with a finite survival."""
    evidence = draft.evidence
    if evidence is None:
        return
    if evidence.ndim != 2 or len(evidence) != len(draft) or not evidence.shape[1]:
        raise InvalidDraft(f"got evidence of shape {evidence.shape}; expected {len(draft)} rows")
    if not math.isfinite(sum(evidence[:, 0].tolist())):
        raise InvalidDraft("the estimated survival of a draft token is NaN or infinite")
