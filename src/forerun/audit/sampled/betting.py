"""Evidence as money: bets against "the law is at most epsilon away from p", and what bettors own.

A bettor who thinks the law is q is paid clip(q/p, low, high) for each outcome. The two limits are such that
the bet is fair in the worst case: under any law within total variation epsilon of p its expected payoff is
at most 1. (Take p', which moves mass epsilon from where the payoff is lowest to where it is highest; no law
in the ball pays more, and p' * payoff adds up to q, that is, to 1. This p' is the reverse information
projection of q on the ball: Huber's least favourable law.) So wealth is a supermartingale if the server is
honest, and by Ville's inequality the chance that it ever reaches 1/alpha is at most alpha, whenever one
looks and whenever one stops. `payoff` runs on fractions as on floats; a test proves the claim in fractions.

Knows nothing of tokens, servers or models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from forerun.types import FloatArray

SHARES: Final = np.array([0.9, 0.3, 0.1, 0.03])
"""The shares of their wealth that bettors stake."""

Law: TypeAlias = npt.NDArray[Any]
"""One-dimensional, adds up to 1: float64, or Fractions in an object array."""


def payoff(p: Law, q: Law, epsilon: Any) -> Law:
    """What a bet on q pays for each outcome, if laws within epsilon of p are to be nothing to win from."""
    ratio = _ratio(q, p)
    up = np.argsort(ratio, kind="stable")
    low = _least(np.cumsum(q[up]), np.cumsum(p[up]) - epsilon)
    high = _most(np.cumsum(q[up[::-1]]), np.cumsum(p[up[::-1]]) + epsilon)
    if low >= high:  # q itself is within the ball
        return np.ones_like(p)
    return np.asarray(np.minimum(np.maximum(ratio, low), high))


def _ratio(q: Law, p: Law) -> Law:
    """q/p; infinite where only p is nothing, and 1 where both are."""
    impossible = p == 0
    ratio = np.divide(q, np.where(impossible, np.ones_like(p), p))
    return np.where(impossible, np.where(q == 0, np.ones_like(q), math.inf), ratio)


def _least(q: Law, p: Law) -> Any:
    """The lower limit: min over sets of Q / (P - epsilon); sets of low ratios are enough."""
    some = p > 0
    return min((q[some] / p[some]).tolist(), default=math.inf)


def _most(q: Law, p: Law) -> Any:
    """The upper limit: max over sets of Q / (P + epsilon); sets of high ratios are enough."""
    return max((q / p).tolist())


def staked(paid: FloatArray) -> FloatArray:
    """The logarithms of what wealth is multiplied by, for bettors who stake different shares of it.

    Paid for whole stakes [bets, ...]; returned for each bet and each of `SHARES`, one after another. Who is
    right only in part is ruined by staking all, and grows by staking little.
    """
    grown = np.log1p(np.multiply.outer(SHARES, paid - 1.0))
    return np.asarray(np.moveaxis(grown, 0, 1).reshape(len(SHARES) * len(paid), *paid.shape[1:]))


def wealth(logs: FloatArray | Sequence[float]) -> float:
    """The logarithm of what bettors own together who began with equal shares of 1."""
    logs = np.asarray(logs, dtype=np.float64)
    top = logs.max()
    return float(top + np.log(np.exp(logs - top).mean())) if np.isfinite(top) else float(top)


def joint_wealth(logs: FloatArray) -> float:
    """The logarithm of what all bettors [rows, bettors] own: half is bet row by row, half on all rows alike.

    The first half sees a fault of one row, the second a small fault of all of them.
    """
    each = np.array([wealth(row) for row in logs])
    return wealth([wealth(each), wealth(logs.sum(axis=0))])
