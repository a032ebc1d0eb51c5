"""What keeps estimates honest: seconds set aside for finding out, accounts of what guessing brought, and rest
from looking for guesses where there are none.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.005
"""The share of all time that may be spent on finding out."""

HEAD_START: Final = 0.5
"""The share of a step that a purse begins with: at first there is most to find out."""

DEEPEST: Final = 2.0
"""A purse holds at most so many steps' time: nobody saves for a spree."""

FORGET: Final = 0.99
"""What a step counts for in an account after the next one."""

MIN_STEPS: Final = 20.0
"""Steps that an account has to know before anybody stands down for it."""

MAX_LOSS: Final = 0.01
"""The share of plain decoding's time that a class of requests may lose before it stands down."""


LOOKUP_DECAY: Final = 0.98
"""What a look counts for after the next one, in whether looking pays."""

PRIOR_KEPT_SHARE: Final = 0.998
"""What a look counts for after the next one, in whether promises are kept: outcomes are noisy."""

PRIOR_WEIGHT: Final = 100.0
"""So many looks are taken to have kept what was promised, before any."""

MIN_LOOKUPS: Final = 20.0
"""Looks that have to be known before anybody rests."""

MAX_BACKOFF_STEPS: Final = 8
"""At most so many steps pass between two looks: text may begin to repeat any time."""


class ExplorationBudget:
    """Seconds for finding out. What is spent was saved before, a share of every step, and a head start."""

    __slots__ = ("seconds", "spent", "total")

    def __init__(self) -> None:
        self.seconds = self.spent = self.total = 0.0

    def earn(self, step_seconds: float) -> None:
        """A step took so long."""
        if not self.total:
            self.seconds = HEAD_START * step_seconds
        self.total += step_seconds
        self.seconds = min(self.seconds + SHARE * step_seconds, DEEPEST * step_seconds)

    def spend(self, seconds: float) -> bool:
        """Spend so much if it is there."""
        if seconds > self.seconds:
            return False
        self.seconds -= max(seconds, 0.0)
        self.spent += max(seconds, 0.0)
        return True


class NetGain:
    """What the guesses of a class of requests brought and cost, in seconds of plain decoding."""

    __slots__ = ("_brought", "_cost", "_num", "_plain")

    def __init__(self) -> None:
        self._brought = self._cost = self._plain = self._num = 0.0

    def record(self, brought: float, cost: float, plain: float) -> None:
        """Guesses saved so much time and took so much, in a step that takes `plain` without any."""
        self._num = FORGET * self._num + 1
        self._brought = FORGET * self._brought + brought
        self._cost = FORGET * self._cost + cost
        self._plain = FORGET * self._plain + plain

    @property
    def is_losing(self) -> bool:
        """Whether guesses cost more than they bring, by more than can be borne."""
        return self._num > MIN_STEPS and self._cost - self._brought > MAX_LOSS * self._plain


class LookupBackoff:
    """Whether to look for guesses at all: that takes time of its own. Where what was found of late promised
    less, as far as promises are kept, steps pass between two looks, about twice as many each time. The first
    look that pays for the last ones ends it.

    Guesses are taken because they promise most, so they bring less than they promise: where nearly nothing is
    gained that may be all.
    """

    __slots__ = ("_brought", "_gained", "_left", "_length", "_num", "_num_promised", "_promised", "_took")

    def __init__(self) -> None:
        self._gained = self._took = self._num = 0.0
        self._promised = self._brought = self._num_promised = 0.0
        self._length = self._left = 0

    def record_lookup(self, promised: float, brought: float, seconds: float) -> None:
        """Somebody looked for so long; what was found promised so much and brought so much, all in seconds.
        What brought something without a promise was made to find out, and counts.
        """
        self._num = LOOKUP_DECAY * self._num + 1
        self._num_promised = PRIOR_KEPT_SHARE * self._num_promised + 1
        self._promised = PRIOR_KEPT_SHARE * self._promised + promised
        self._brought = PRIOR_KEPT_SHARE * self._brought + brought
        gained = promised * self._share_kept if promised else max(brought, 0.0)
        self._gained = LOOKUP_DECAY * self._gained + gained
        self._took = LOOKUP_DECAY * self._took + seconds
        tired = self._num > MIN_LOOKUPS and self._gained < self._took
        self._length = min(2 * self._length + 1, MAX_BACKOFF_STEPS) if tired else 0
        self._left = self._length

    @property
    def _share_kept(self) -> float:
        """How much of what is promised is brought, between nothing and all."""
        given = PRIOR_WEIGHT / self._num_promised * self._promised
        return min(max((self._brought + given) / (self._promised + given), 0.0), 1.0)

    def should_look_up(self) -> bool:
        """Whether it is time to look; asked once a step."""
        self._left -= 1
        return self._left < 0
