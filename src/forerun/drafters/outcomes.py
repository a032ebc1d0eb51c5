"""The likely outcomes of a verification: how many draft tokens are accepted, and which token comes next.

The number of accepted draft tokens follows a geometric distribution, capped at the length of the draft, whose
rate is the measured acceptance. The next token follows the draft model's own distribution at that position,
without the draft token that was rejected there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

RATE_DECAY: Final = 0.99
"""Decay of the counts of verified and accepted draft tokens, per draft."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The first `num_accepted` draft tokens are accepted, then `token` is emitted."""

    num_accepted: int
    token: int
    probability: float


class AcceptanceRate:
    """The share of draft tokens that were accepted where those before them were; one half at first."""

    def __init__(self) -> None:
        self._accepted, self._verified = 1.0, 2.0

    @property
    def value(self) -> float:
        """The current estimate."""
        return self._accepted / self._verified

    def record(self, num_drafted: int, num_accepted: int) -> None:
        """Count the outcome of one chain; the first rejected draft token counts as verified."""
        self._accepted = RATE_DECAY * self._accepted + num_accepted
        self._verified = RATE_DECAY * self._verified + min(num_accepted + 1, num_drafted)


def likely_outcomes(
    candidates: Sequence[Sequence[tuple[int, float]]], rate: float, max_outcomes: int
) -> list[Outcome]:
    """The most likely outcomes for a chain of draft tokens, most likely first.

    `candidates` has for each number of accepted draft tokens, from none to all, likely next tokens with their
    probabilities. The draft token that was rejected there is not among them.
    """
    num = len(candidates) - 1
    found = [
        Outcome(k, token, rate**k * (1.0 - rate if k < num else 1.0) * float(prob))
        for k, tokens in enumerate(candidates)
        for token, prob in tokens
        if prob > 0
    ]
    return sorted(found, key=lambda each: -each.probability)[:max_outcomes]
