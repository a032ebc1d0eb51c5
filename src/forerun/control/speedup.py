"""Measured effect of speculation: the recent speedup, and the net gain of a class of requests."""

from __future__ import annotations

from typing import Final

EMA_WEIGHT: Final = 0.1
"""Weight of a new observation in the moving averages of `SpeedupEstimate`."""

NET_GAIN_DECAY: Final = 0.99
"""Decay per step of the sums in `NetGain`."""

MIN_STEPS: Final = 20.0
"""Effective number of steps before `NetGain` may suspend speculation."""

MAX_LOSS: Final = 0.01
"""Loss at which a class of requests is suspended, as a share of the time of non-speculative decoding."""


class SpeedupEstimate:
    """Recent speedup over non-speculative decoding: a ratio of moving averages of tokens and time."""

    __slots__ = ("_num_steps", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._num_steps, self._tokens, self._seconds = 1, 1.0, 1.0

    def update(self, tokens: float, seconds: float) -> None:
        """Record a step's tokens and seconds, both relative to a baseline step."""
        self._num_steps += 1
        weight = max(EMA_WEIGHT, 1 / self._num_steps)  # the first steps are averaged with equal weights
        self._tokens += weight * (tokens - self._tokens)
        self._seconds += weight * (seconds - self._seconds)

    @property
    def value(self) -> float:
        """At least 1, because the controller can always choose non-speculative decoding."""
        return max(self._tokens / self._seconds, 1.0)


class NetGain:
    """Decayed sums of the time that draft tokens of a class of requests saved and cost."""

    __slots__ = ("_baseline", "_cost", "_num_steps", "_saved")

    def __init__(self) -> None:
        self._saved = self._cost = self._baseline = self._num_steps = 0.0

    def record(self, saved: float, cost: float, baseline: float) -> None:
        """Record saved and spent seconds of a step whose baseline takes `baseline` seconds."""
        self._num_steps = NET_GAIN_DECAY * self._num_steps + 1
        self._saved = NET_GAIN_DECAY * self._saved + saved
        self._cost = NET_GAIN_DECAY * self._cost + cost
        self._baseline = NET_GAIN_DECAY * self._baseline + baseline

    @property
    def is_losing(self) -> bool:
        """Whether costs exceed savings by more than `MAX_LOSS` of the baseline time."""
        return self._num_steps > MIN_STEPS and self._cost - self._saved > MAX_LOSS * self._baseline
