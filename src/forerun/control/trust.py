"""By how much estimated survivals were too high, learnt from what became of guesses.

Drafters order their guesses well and are bad at saying how likely they are, above all for text that is
drawn: a lookup knows what was said, not how sure the model was. Two numbers mend that: how many guesses were
expected to stand, and how many did. Estimates that were too low are left alone: raising them made replays
slower.
"""

from __future__ import annotations

from typing import Final

FORGET: Final = 0.97
"""What a round counts for after the next one: some thirty rounds are remembered."""

FORGET_SILENTLY: Final = 0.998
"""The same for a round without guesses: what is distrusted is tried again, some hundreds of rounds later."""

PATIENCE: Final = 1.5
"""So many expected tokens speak for what was believed before."""


class Trust:
    """A factor for survivals; `above` is who is believed as long as little was seen here."""

    __slots__ = ("_above", "_expected", "_stood")

    def __init__(self, above: Trust | None = None) -> None:
        self._above = above
        self._expected = self._stood = 0.0

    @property
    def factor(self) -> float:
        """Guesses that stood, over guesses that were expected to; at most 1."""
        before = 1.0 if self._above is None else self._above.factor
        return min((PATIENCE * before + self._stood) / (PATIENCE + self._expected), 1.0)

    def heard(self, expected: float, num_stood: int) -> None:
        """Of the guesses of a round so many were expected to stand, and so many did."""
        forget = FORGET if expected else FORGET_SILENTLY
        self._expected = forget * self._expected + expected
        self._stood = forget * self._stood + num_stood
        if self._above is not None:
            self._above.heard(expected, num_stood)
