"""What a broken server might do, as laws to bet on: the usual defects, and what was learnt from the samples.

Each is a law over the classes of a place. Whoever bets on the right one is rich soonest, so the richest also
says what is probably wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from forerun.audit.sampled.betting import SHARES, payoff, staked
from forerun.audit.sampled.positions import NUM_CLASSES, RANKS, Position
from forerun.types import FloatArray

_STRENGTH: Final = 16.0
"""How many samples the reference's own law weighs when the law of a place is learnt."""


_LIKELIEST: Final = np.eye(1, NUM_CLASSES)[0]


def _tempered(place: Position, power: float) -> FloatArray:
    """The law raised to a power, token by token."""
    each = np.divide(place.mass, place.size, out=np.zeros_like(place.mass), where=place.mass > 0)
    law = place.size * each**power
    law[place.mass == 0] = 0.0
    return np.asarray(law / law.sum())


def _mixed(place: Position, other: FloatArray, share: float) -> FloatArray:
    return (1 - share) * place.mass + share * other


def _copies(place: Position, share: float) -> FloatArray:
    """Copies more often than they should be, by that share of all tokens."""
    mass = np.where(place.copied, place.mass, 0.0)
    return _mixed(place, mass / mass.sum(), share) if mass.sum() > 0 else place.mass


def _fewer_copies(place: Position) -> FloatArray:
    law = np.where(place.copied, place.mass / 2, place.mass)
    return np.asarray(law / law.sum())


FIXED: dict[str, Callable[[Position], FloatArray]] = {
    "guesses kept a little too often": lambda place: _copies(place, 0.1),
    "guesses kept far too often": lambda place: _copies(place, 0.5),
    "guesses kept too seldom": _fewer_copies,
    "the likeliest token too often": lambda place: _mixed(place, _LIKELIEST, 0.3),
    "as if colder": lambda place: _tempered(place, 1.5),
    "as if hotter": lambda place: _tempered(place, 0.7),
    "sampling settings ignored": lambda place: _mixed(place, place.untouched, 0.5),
    "penalties that do not count guesses": lambda place: _mixed(place, place.stale, 0.7),
    "tokens from nowhere": lambda place: _mixed(place, place.size / place.size.sum(), 0.5),
}
LEARNT: Final = ("another law at single places", "another law by rank", "another law by token")
ALTERNATIVES: Final = tuple(name for name in (*FIXED, *LEARNT) for _ in SHARES)
"""The bettors: each suspicion is shared by those who stake more and less on it."""


def fixed_bets(place: Position) -> FloatArray:
    """Logarithms of what wealth is multiplied by [fixed suspicions and shares, classes]."""
    return _bets([law(place) for law in FIXED.values()], place)


class Learner:
    """Learns what was said: at each place, and over all places by rank and by token."""

    def __init__(self) -> None:
        self._here: dict[tuple[int, ...], FloatArray] = {}
        self._seen = np.zeros(2 * (RANKS.max() + 1))
        self._expected = np.zeros_like(self._seen)
        self._tokens: dict[int, FloatArray] = {}

    def bets(self, path: tuple[int, ...], place: Position) -> FloatArray:
        """The same [learnt suspicions and shares, classes], from what was heard so far."""
        here = self._here.get(path, 0.0) + _STRENGTH * place.mass
        tilt = (self._seen + _STRENGTH / 4) / (self._expected + _STRENGTH / 4)
        ranked = np.where(place.mass > 0, place.mass, self._strays(place)) * tilt[_groups(place)]
        tokens = place.mass.copy()
        tokens[: len(place.top)] *= [self._tilt_of(token) for token in place.top.tolist()]
        return _bets([here / here.sum(), ranked / ranked.sum(), tokens / tokens.sum()], place)

    def hear(self, path: tuple[int, ...], place: Position, outcome: int) -> None:
        """One more sample."""
        self._here.setdefault(path, np.zeros(NUM_CLASSES))[outcome] += 1
        groups = _groups(place)
        self._seen[groups[outcome]] += 1
        self._expected += np.bincount(groups, weights=place.mass, minlength=len(self._expected))
        for rank, token in enumerate(place.top.tolist()):
            known = self._tokens.setdefault(token, np.zeros(2))
            known += (outcome == rank, place.mass[rank])

    def _tilt_of(self, token: int) -> float:
        """How much more often than expected a token was said, over all places."""
        seen, expected = self._tokens.get(token, (0.0, 0.0))
        return float((seen + _STRENGTH / 4) / (expected + _STRENGTH / 4))

    def _strays(self, place: Position) -> FloatArray:
        """A trace of mass where there should be none, so that it can be tilted up."""
        return np.where(place.size > 0, 1e-3 / NUM_CLASSES, 0.0)


def _groups(place: Position) -> np.ndarray:
    """Rank and whether it is a copy."""
    return np.asarray(RANKS + (RANKS.max() + 1) * place.copied)


def _bets(laws: list[FloatArray], place: Position) -> FloatArray:
    return staked(np.array([payoff(place.mass, law, place.epsilon) for law in laws], dtype=np.float64))
