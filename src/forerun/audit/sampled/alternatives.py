"""Alternative distributions that the bettors bet on: known defects of servers, and ones learned from the
samples.

Each alternative is a distribution over the token classes of a position. The bettor with the best alternative
gains wealth fastest, so the wealthiest bettor also names the probable defect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from forerun.audit.sampled.betting import STAKES, log_growth, payoff
from forerun.audit.sampled.positions import NUM_CLASSES, RANK_GROUPS, Position
from forerun.types import FloatArray

_PRIOR_SAMPLES: Final = 16.0
"""The weight of the expected distribution, in samples, when an alternative is learned at a position."""

_MOST_LIKELY: Final = np.eye(1, NUM_CLASSES)[0]


def _tempered(position: Position, power: float) -> FloatArray:
    """The distribution raised to a power, token by token."""
    each = np.divide(position.mass, position.size, out=np.zeros_like(position.mass), where=position.mass > 0)
    q = position.size * each**power
    q[position.mass == 0] = 0.0
    return np.asarray(q / q.sum())


def _mixed(position: Position, other: FloatArray, share: float) -> FloatArray:
    return (1 - share) * position.mass + share * other


def _more_lookup_tokens(position: Position, share: float) -> FloatArray:
    """A share of the mass moved to tokens that a lookup drafter would propose."""
    mass = np.where(position.is_lookup, position.mass, 0.0)
    return _mixed(position, mass / mass.sum(), share) if mass.sum() > 0 else position.mass


def _fewer_lookup_tokens(position: Position) -> FloatArray:
    q = np.where(position.is_lookup, position.mass / 2, position.mass)
    return np.asarray(q / q.sum())


FIXED: dict[str, Callable[[Position], FloatArray]] = {
    "draft tokens accepted slightly too often": lambda position: _more_lookup_tokens(position, 0.1),
    "draft tokens accepted far too often": lambda position: _more_lookup_tokens(position, 0.5),
    "draft tokens accepted too rarely": _fewer_lookup_tokens,
    "most likely token sampled too often": lambda position: _mixed(position, _MOST_LIKELY, 0.3),
    "temperature too low": lambda position: _tempered(position, 1.5),
    "temperature too high": lambda position: _tempered(position, 0.7),
    "sampling settings ignored": lambda position: _mixed(position, position.unwarped, 0.5),
    "penalties do not count draft tokens": lambda position: _mixed(position, position.stale_penalties, 0.7),
    "uniformly random tokens": lambda position: _mixed(position, position.size / position.size.sum(), 0.5),
}
LEARNED: Final = (
    "distribution differs at single positions",
    "distribution differs by token rank",
    "distribution differs by token",
)
ALTERNATIVES: Final = tuple(name for name in (*FIXED, *LEARNED) for _ in STAKES)
"""The alternative of each bettor; one bettor per alternative and stake."""


def fixed_bets(position: Position) -> FloatArray:
    """Log growth of wealth [fixed alternatives x stakes, classes]."""
    return _bets([alternative(position) for alternative in FIXED.values()], position)


class LearnedAlternatives:
    """Learns the sampled distribution at each position, and over all positions by rank and by token."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, ...], FloatArray] = {}
        self._observed = np.zeros(2 * (RANK_GROUPS.max() + 1))
        self._expected = np.zeros_like(self._observed)
        self._tokens: dict[int, FloatArray] = {}

    def bets(self, path: tuple[int, ...], position: Position) -> FloatArray:
        """Log growth of wealth [learned alternatives x stakes, classes], from the samples observed so far."""
        here = self._counts.get(path, 0.0) + _PRIOR_SAMPLES * position.mass
        tilt = (self._observed + _PRIOR_SAMPLES / 4) / (self._expected + _PRIOR_SAMPLES / 4)
        ranked = np.where(position.mass > 0, position.mass, self._floor(position)) * tilt[_groups(position)]
        tokens = position.mass.copy()
        tokens[: len(position.top)] *= [self._token_tilt(token) for token in position.top.tolist()]
        return _bets([here / here.sum(), ranked / ranked.sum(), tokens / tokens.sum()], position)

    def observe(self, path: tuple[int, ...], position: Position, outcome: int) -> None:
        """Add one sampled token, given by its class."""
        self._counts.setdefault(path, np.zeros(NUM_CLASSES))[outcome] += 1
        groups = _groups(position)
        self._observed[groups[outcome]] += 1
        self._expected += np.bincount(groups, weights=position.mass, minlength=len(self._expected))
        for rank, token in enumerate(position.top.tolist()):
            known = self._tokens.setdefault(token, np.zeros(2))
            known += (outcome == rank, position.mass[rank])

    def _token_tilt(self, token: int) -> float:
        """Observed over expected frequency of a token, over all positions."""
        observed, expected = self._tokens.get(token, (0.0, 0.0))
        return float((observed + _PRIOR_SAMPLES / 4) / (expected + _PRIOR_SAMPLES / 4))

    def _floor(self, position: Position) -> FloatArray:
        """A small mass for classes of probability 0, so that the tilt can raise it."""
        return np.where(position.size > 0, 1e-3 / NUM_CLASSES, 0.0)


def _groups(position: Position) -> np.ndarray:
    """The rank group of each class, separately for lookup tokens."""
    return np.asarray(RANK_GROUPS + (RANK_GROUPS.max() + 1) * position.is_lookup)


def _bets(alternatives: list[FloatArray], position: Position) -> FloatArray:
    return log_growth(
        np.array([payoff(position.mass, q, position.epsilon) for q in alternatives], dtype=np.float64)
    )
