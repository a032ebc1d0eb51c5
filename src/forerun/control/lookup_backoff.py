"""Backoff from lookups that gain less than they take."""

from __future__ import annotations

from typing import Final

LOOKUP_DECAY: Final = 0.98
"""Decay per lookup of the comparison between gain and lookup time."""

REALIZED_SHARE_DECAY: Final = 0.998
"""Decay per lookup of the estimate of realized over expected gain. It is slow because outcomes are noisy."""

PRIOR_WEIGHT: Final = 100.0
"""Weight of the prior that lookups realize their expected gain, in lookups."""

MIN_LOOKUPS: Final = 20.0
"""Effective number of lookups before backoff may start."""

MAX_BACKOFF_STEPS: Final = 8
"""Maximum number of steps between two lookups, because text may start to repeat at any time."""


class LookupBackoff:
    """Whether to look up draft tokens, which takes time itself.

    Where the expected gain of recent lookups, scaled by the realized share, is below their cost, the number
    of steps between two lookups about doubles up to `MAX_BACKOFF_STEPS`. It resets once the decayed gain
    covers the decayed cost again.

    The scaling corrects selection bias: candidates are chosen for their high estimates, so they realize less
    than expected. Where the gain is small, that difference can be all of it.
    """

    __slots__ = (
        "_expected",
        "_gained",
        "_interval",
        "_num_lookups",
        "_num_outcomes",
        "_realized",
        "_remaining",
        "_seconds",
    )

    def __init__(self) -> None:
        self._gained = self._seconds = self._num_lookups = 0.0
        self._expected = self._realized = self._num_outcomes = 0.0
        self._interval = self._remaining = 0

    def record_lookup(self, expected: float, realized: float, seconds: float) -> None:
        """Record the duration of a lookup, and the expected and realized gain of its draft tokens, all in
        seconds. A realized gain without an expected one comes from exploration and counts as gain.
        """
        self._num_lookups = LOOKUP_DECAY * self._num_lookups + 1
        self._num_outcomes = REALIZED_SHARE_DECAY * self._num_outcomes + 1
        self._expected = REALIZED_SHARE_DECAY * self._expected + expected
        self._realized = REALIZED_SHARE_DECAY * self._realized + realized
        gained = expected * self._realized_share if expected else max(realized, 0.0)
        self._gained = LOOKUP_DECAY * self._gained + gained
        self._seconds = LOOKUP_DECAY * self._seconds + seconds
        is_losing = self._num_lookups > MIN_LOOKUPS and self._gained < self._seconds
        self._interval = min(2 * self._interval + 1, MAX_BACKOFF_STEPS) if is_losing else 0
        self._remaining = self._interval

    @property
    def _realized_share(self) -> float:
        """Realized over expected gain, clipped to [0, 1]."""
        prior = PRIOR_WEIGHT / self._num_outcomes * self._expected
        return min(max((self._realized + prior) / (self._expected + prior), 0.0), 1.0)

    def should_look_up(self) -> bool:
        """Whether to look up in this step. Call it once per step."""
        self._remaining -= 1
        return self._remaining < 0

    @property
    def num_steps_without(self) -> int:
        """Number of steps before the next lookup."""
        return max(self._remaining, 0)

    def skip(self, num_steps: int) -> None:
        """Let steps pass without a lookup."""
        self._remaining -= num_steps
