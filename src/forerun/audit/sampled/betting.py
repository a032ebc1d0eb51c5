"""Testing by betting: bets against the hypothesis that the distribution is within epsilon of p.

A bettor whose alternative is q is paid clip(q/p, low, high) for each outcome. The two limits make the bet
fair in the worst case: under every distribution within total variation epsilon of p, the expected payoff is
at most 1. (Let p' move mass epsilon from the outcomes with the lowest payoff to those with the highest. No
distribution in the ball has a larger expected payoff, and p' * payoff equals q, which sums to 1. p' is the
reverse information projection of q on the ball: Huber's least favourable distribution.) Under the hypothesis,
wealth is therefore a supermartingale, and by Ville's inequality the probability that it ever reaches 1/alpha
is at most alpha, at any stopping time. `payoff` accepts fractions as well as floats; a test proves the claim
in fractions.

Independent of tokens, servers and models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from forerun.types import FloatArray

STAKES: Final = np.array([0.9, 0.3, 0.1, 0.03])
"""The shares of their wealth that bettors stake on each outcome."""

Probabilities: TypeAlias = npt.NDArray[Any]
"""One-dimensional, sums to 1: float64, or Fractions in an object array."""


def payoff(p: Probabilities, q: Probabilities, epsilon: Any) -> Probabilities:
    """The payoff of a bet on q for each outcome; its mean is at most 1 within the epsilon ball around p."""
    ratio = _ratio(q, p)
    up = np.argsort(ratio, kind="stable")
    low = _lower_limit(np.cumsum(q[up]), np.cumsum(p[up]) - epsilon)
    high = _upper_limit(np.cumsum(q[up[::-1]]), np.cumsum(p[up[::-1]]) + epsilon)
    if low >= high:  # q is within the ball
        return np.ones_like(p)
    return np.asarray(np.minimum(np.maximum(ratio, low), high))


def _ratio(q: Probabilities, p: Probabilities) -> Probabilities:
    """q/p; infinite where only p is 0, and 1 where both are 0."""
    impossible = p == 0
    ratio = np.divide(q, np.where(impossible, np.ones_like(p), p))
    return np.where(impossible, np.where(q == 0, np.ones_like(q), math.inf), ratio)


def _lower_limit(q: Probabilities, p: Probabilities) -> Any:
    """Min over sets of Q / (P - epsilon); the sets of the lowest ratios suffice."""
    positive = p > 0
    return min((q[positive] / p[positive]).tolist(), default=math.inf)


def _upper_limit(q: Probabilities, p: Probabilities) -> Any:
    """Max over sets of Q / (P + epsilon); the sets of the highest ratios suffice."""
    return max((q / p).tolist())


def log_growth(payoffs: FloatArray) -> FloatArray:
    """The log of the factor by which wealth grows, [bets x stakes, ...] from payoffs [bets, ...].

    Stakes vary fastest. A bettor whose alternative is only partly right loses everything with a large stake
    and gains with a small one.
    """
    growth = np.log1p(np.multiply.outer(STAKES, payoffs - 1.0))
    return np.asarray(np.moveaxis(growth, 0, 1).reshape(len(STAKES) * len(payoffs), *payoffs.shape[1:]))


def log_mean_wealth(logs: FloatArray | Sequence[float]) -> float:
    """The log of the joint wealth of bettors who start with equal shares of 1."""
    logs = np.asarray(logs, dtype=np.float64)
    top = logs.max()
    return float(top + np.log(np.exp(logs - top).mean())) if np.isfinite(top) else float(top)


def log_joint_wealth(logs: FloatArray) -> float:
    """The log of the joint wealth of all bettors [rows, bettors]: half bets per row, half on all rows
    jointly.

    The first half detects a fault of one row, the second a small fault common to all rows.
    """
    each = np.array([log_mean_wealth(row) for row in logs])
    return log_mean_wealth([log_mean_wealth(each), log_mean_wealth(logs.sum(axis=0))])
