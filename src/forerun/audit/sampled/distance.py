"""Upper confidence bounds on the total variation distance of two distributions, and the samples they need.

All bounds are exact for finite samples. If the server's distribution P' is at distance tau from P, there is a
set A with P'(A) = P(A) + tau, and the empirical distance is at least the empirical share of A minus P(A). The
empirical distance is therefore below tau by more than a slack only if the share of A falls that far below
P'(A), and a share of n samples is binomial. A and its probability are unknown, so the slack covers the worst
case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
from scipy.stats import binom, norm

from forerun.types import FloatArray


def distance_to_distribution(counts: Mapping[Any, int], p: Mapping[Any, float]) -> float:
    """Empirical total variation distance from counts to p, which needs to contain counted outcomes only."""
    num = sum(counts.values())
    if not num:
        return 1.0
    counted = sum(abs(count / num - p[outcome]) for outcome, count in counts.items())
    uncounted = max(0.0, 1.0 - sum(p[outcome] for outcome in counts))
    return (counted + uncounted) / 2


def distance_between_counts(one: Mapping[Any, int], other: Mapping[Any, int]) -> float:
    """Empirical total variation distance between two sets of counts."""
    num_one, num_other = sum(one.values()), sum(other.values())
    if not (num_one and num_other):
        return 1.0
    return sum(abs(one.get(x, 0) / num_one - other.get(x, 0) / num_other) for x in one.keys() | other) / 2


@lru_cache(maxsize=256)
def slack(error_rate: float, num_samples: int) -> float:
    """The true distance exceeds the empirical distance plus this slack with at most this probability."""
    if not num_samples:
        return 1.0
    shares = np.linspace(0.0, 1.0, _GRID + 1)
    # The fewest samples that fall into a set of each probability, at the error rate. Between two points of
    # the grid, the slack is at most the larger probability minus the share at the smaller.
    fewest = binom.ppf(error_rate, num_samples, shares[:-1]) - 1
    return float(min(1.0, (shares[1:] - fewest / num_samples).max()))


def two_sample_slack(error_rate: float, num_one: int, num_other: int) -> float:
    """The slack between two sets of samples, by Hoeffding's inequality."""
    if not (num_one and num_other):
        return 1.0
    return min(1.0, math.sqrt(math.log(1 / error_rate) * (1 / num_one + 1 / num_other) / 2))


_FINAL_SHARE: Final = 0.9
"""The share of the error rate spent on the bound at the planned number of samples."""

_FIRST_BOUND: Final = 256
"""The number of samples at which the first bound is computed."""

_GRID: Final = 4096
"""Probabilities of sets over which the slack is maximised."""

_MARGIN: Final = 0.75
"""Two to three standard deviations of the empirical distance, in units of 1/sqrt(n)."""


def samples_to_bound(probabilities: FloatArray, target: float, error_rate: float) -> int:
    """The number of samples after which the bound of an exact server is expected at or below the target."""
    spread = math.sqrt(1 / (2 * math.pi)) * float(np.sqrt(probabilities * (1 - probabilities)).sum())
    worst = float(norm.isf(error_rate * _FINAL_SHARE)) / 2
    return math.ceil(((spread + _MARGIN + worst) / target) ** 2)


def bound_schedule(error_rate: float, num_planned: int) -> dict[int, float]:
    """The numbers of samples at which a bound is computed, with the error rate that each may spend.

    Most of it is spent at the planned end. The rest is spread over sizes that double from `_FIRST_BOUND`, so
    that an audit that stops early has a bound from at least half of its samples.
    """
    sizes = []
    size = _FIRST_BOUND
    while size < num_planned:
        sizes.append(size)
        size *= 2
    early = {size: error_rate * (1 - _FINAL_SHARE) / len(sizes) for size in sizes}
    return {**early, num_planned: error_rate * _FINAL_SHARE}


def tokens_to_detect(bias: float, epsilon: float, error_rate: float, num_bettors: int) -> int | None:
    """The approximate number of tokens that detects a distance of `bias`; None if that is within epsilon.

    It holds for a bettor on the right set, of probability 1/2, where a shift is hardest to detect: its log
    wealth grows by KL(1/2 + bias || 1/2 + epsilon) per token and has to make up for all other bettors.
    """
    if bias <= epsilon or 0.5 + bias >= 1:
        return None if bias <= epsilon else 1
    a, b = 0.5 + bias, 0.5 + epsilon
    growth = a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b))
    return math.ceil(math.log(num_bettors / error_rate) / growth)
