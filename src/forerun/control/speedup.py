"""The recent speedup over non-speculative decoding."""

from __future__ import annotations

from typing import Final

EMA_WEIGHT: Final = 0.1
"""Weight of a new observation in the moving averages of `SpeedupEstimate`."""


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
