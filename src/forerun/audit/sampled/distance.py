"""How far apart two laws can still be, given what was seen, and how much must be seen to tell them apart.

All bounds hold for the sample sizes at hand, without approximation. If the server's law is tau away from p
there is a set A with P'(A) = P(A) + tau, and the distance that is seen is at least the share seen in A less
P(A). So it is smaller than tau by more than a slack only if the share seen in A falls that far below P'(A),
and a share of n samples is binomial. Which A, and how large, nobody knows: the slack is for the worst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
from scipy.stats import binom, norm

from forerun.types import FloatArray


def distance_to_law(counts: Mapping[Any, int], p: Mapping[Any, float]) -> float:
    """Total variation between what was counted and the law p, which is needed only where something was."""
    num = sum(counts.values())
    if not num:
        return 1.0
    seen = sum(abs(count / num - p[outcome]) for outcome, count in counts.items())
    unseen = max(0.0, 1.0 - sum(p[outcome] for outcome in counts))
    return (seen + unseen) / 2


def distance_of_counts(one: Mapping[Any, int], other: Mapping[Any, int]) -> float:
    """Total variation between two countings."""
    num_one, num_other = sum(one.values()), sum(other.values())
    if not (num_one and num_other):
        return 1.0
    return sum(abs(one.get(x, 0) / num_one - other.get(x, 0) / num_other) for x in one.keys() | other) / 2


@lru_cache(maxsize=256)
def slack(error_rate: float, num_samples: int) -> float:
    """What to add to a distance seen between samples and a law; the true one is larger at most that often."""
    if not num_samples:
        return 1.0
    shares = np.linspace(0.0, 1.0, _SHARES + 1)
    # How few of the samples may fall into a set of each size, at the error rate. Between two sizes of the
    # grid the slack is at most the larger size less what is seen at the smaller.
    few = binom.ppf(error_rate, num_samples, shares[:-1]) - 1
    return float(min(1.0, (shares[1:] - few / num_samples).max()))


def slack_of_two(error_rate: float, num_one: int, num_other: int) -> float:
    """The same between two sets of samples, by Hoeffding's inequality."""
    if not (num_one and num_other):
        return 1.0
    return min(1.0, math.sqrt(math.log(1 / error_rate) * (1 / num_one + 1 / num_other) / 2))


_FINAL: Final = 0.9
"""The share of an error rate that is kept for the planned end."""

_SHARES: Final = 4096
"""Sizes of sets that are tried for the worst slack."""

_MARGIN: Final = 0.75
"""Two to three standard deviations of the distance that is seen, in units of 1/sqrt(n)."""


def samples_to_bound(chances: FloatArray, target: float, error_rate: float) -> int:
    """How many samples of an honest server it takes for the bound to come out at or below a target."""
    spread = math.sqrt(1 / (2 * math.pi)) * float(np.sqrt(chances * (1 - chances)).sum())
    worst = float(norm.isf(error_rate * _FINAL)) / 2
    return math.ceil(((spread + _MARGIN + worst) / target) ** 2)


def looks(error_rate: float, num_planned: int, first: int = 256) -> dict[int, float]:
    """When bounds are worked out, in samples, and what share of the error rate each may spend.

    Most is for the planned end. The rest is for an earlier one: at sizes that double from the first, so
    that whoever stops early has a bound whose samples are at least half of those that came.
    """
    sizes = []
    size = first
    while size < num_planned:
        sizes.append(size)
        size *= 2
    early = {size: error_rate * (1 - _FINAL) / len(sizes) for size in sizes}
    return {**early, num_planned: error_rate * _FINAL}


def samples_to_catch(bias: float, epsilon: float, error_rate: float, num_bettors: int) -> int | None:
    """About how many tokens it takes to catch a law that is `bias` away; None if that is within epsilon.

    For a bettor who bets on the right set, of mass one half, where a shift is hardest to see: its wealth
    grows by KL(1/2 + bias || 1/2 + epsilon) a token, and it must make up for all bettors who are wrong.
    """
    if bias <= epsilon or 0.5 + bias >= 1:
        return None if bias <= epsilon else 1
    a, b = 0.5 + bias, 0.5 + epsilon
    growth = a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b))
    return math.ceil(math.log(num_bettors / error_rate) / growth)
