"""A circuit breaker around a drafter: its faults cost draft tokens and never reach a request.

Errors are counted, and the first one is logged. A drafter whose call takes longer than `max_seconds` is
suspended for a hundred times the duration of that call, so that slow calls cost at most 1 % of the time.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from forerun.errors import InvalidDraft
from forerun.types import Draft, Drafter, LogitsDrafter, RequestView, TopTokens, Verdict

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


class DrafterTotals:
    """Time and errors by drafter, for engines that export no metrics."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.errors: Counter[str] = Counter()

    def add_seconds(self, drafter: str, seconds: float) -> None:
        """Add the duration of a drafter's call."""
        self.seconds[drafter] += seconds

    def add_error(self, drafter: str) -> None:
        """Count an error of a drafter."""
        self.errors[drafter] += 1


@dataclass(frozen=True, slots=True)
class DraftFormat:
    """The drafts that an engine verifies.

    With `trees` it verifies trees, otherwise chains: of a tree of chosen tokens, the best path. With `q` it
    verifies sampled draft tokens against their distribution; otherwise they are treated as chosen, which
    `match_target` verifies losslessly.
    """

    vocab_size: int
    trees: bool = True
    q: bool = True


class GuardedDrafter:
    """Guards one drafter; invalid drafts, and drafts that the engine cannot verify, become empty ones."""

    def __init__(
        self,
        name: str,
        drafter: Drafter,
        counters: DrafterCounters,
        draft_format: DraftFormat,
        *,
        max_seconds: float = MAX_PROPOSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        logger: logging.Logger | None = None,
    ) -> None:
        self.name = name
        self.drafter = drafter
        self._learner = drafter if isinstance(drafter, LogitsDrafter) else None
        self.counters = counters
        self.draft_format = draft_format
        self.max_seconds = max_seconds
        self.clock = clock
        self.logger = logger or logging.getLogger("forerun")
        self.last_seconds = 0.0
        self._suspended_until = -1.0
        self._logged = False

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One draft per view, of at most its budget; empty where the drafter fails or is suspended."""
        self.last_seconds = 0.0
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

    @property
    def learns_logits(self) -> bool:
        """Whether the drafter learns from the target's logits."""
        return self._learner is not None

    def learn_logits(self, name: str, top_tokens: TopTokens) -> None:
        """Report the likeliest next tokens at the rows of a request to a drafter that learns from them."""
        try:
            if self._learner is not None:
                self._learner.learn_logits(name, top_tokens)
        except Exception:
            self._record_error("learn_logits() failed")

    def forget(self, name: str, view: RequestView | None = None) -> None:
        """Drop a finished request; with a view, the drafter sees the end of its text first."""
        if view is not None:
            self.propose([view], [0])
        try:
            self.drafter.forget(name)
        except Exception:
            self._record_error("forget() failed")

    def _checked(self, draft: Draft, budget: int) -> Draft:
        """The draft, or an empty one if it is invalid, over budget, or of a kind the engine cannot verify."""
        try:
            if not len(draft):
                return EMPTY_DRAFT
            draft.check(self.draft_format.vocab_size)
            registered = (self.name,) * len(draft)  # metrics and verdicts are by this name
            if draft.source != registered:
                draft = replace(draft, source=registered)
            _check_survival(draft)
            if len(draft) > max(budget, 0):
                raise InvalidDraft(f"got {len(draft)} draft tokens; the budget is {budget}")
            if not self.draft_format.trees and self.draft_format.q and draft.q and not draft.is_chain:
                raise InvalidDraft("got a tree of sampled tokens; this engine verifies chains")
        except Exception:
            self._record_error("propose() returned an invalid draft")
            return EMPTY_DRAFT
        return draft if self.draft_format.q or not draft.q else as_chosen(draft)

    def _record_time(self, seconds: float) -> None:
        self.last_seconds = seconds
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


def as_chosen(draft: Draft) -> Draft:
    """The draft without its q, as chosen tokens."""
    return replace(draft, sampled=np.zeros(len(draft), dtype=bool), q={})


def _check_survival(draft: Draft) -> None:
    """Raise unless every draft token has a finite survival, or none has one."""
    survival = draft.survival
    if survival is None:
        return
    if survival.shape != (len(draft),):
        raise InvalidDraft(
            f"got survival of shape {survival.shape}; expected ({len(draft)},), one estimate per draft token"
        )
    if not math.isfinite(sum(survival.tolist())):
        raise InvalidDraft("the estimated survival of a draft token is NaN or infinite")
