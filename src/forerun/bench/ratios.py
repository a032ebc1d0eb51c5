"""Ratios of speeds with bootstrapped confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from forerun.types import FloatArray

RESAMPLES: Final = 2000

OVERALL: Final = "geo. mean"
"""The name of results over all categories, which are geometric means."""


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """A ratio with its 95 % confidence interval, which is unbounded where the data allow none."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """The ratio as reports print it."""
        if math.isinf(self.high):
            return f"{self.value:.2f} (a single measurement: no interval)"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    @property
    def contains_1(self) -> bool:
        """Whether no difference is shown."""
        return self.low <= 1 <= self.high

    @property
    def significance_note(self) -> str:
        """Text that follows a ratio whose interval contains 1; otherwise empty."""
        return " (no difference shown: the interval contains 1)" if self.contains_1 else ""


def geomean_ratio(categories: Sequence[FloatArray]) -> RatioEstimate:
    """The geometric mean of the categories' medians with its bootstrapped interval."""
    generator = np.random.default_rng(0)
    logs = [np.log(each) for each in categories]
    resampled = np.mean(
        [np.median(generator.choice(each, (RESAMPLES, each.size)), axis=1) for each in logs], axis=0
    )
    low, high = (float(np.exp(each)) for each in np.percentile(resampled, (2.5, 97.5)))
    value = float(np.exp(np.mean([np.median(each) for each in logs])))
    return RatioEstimate(value, low, high)


def ratio_of_sums(above: FloatArray, below: FloatArray) -> RatioEstimate:
    """The sum of one over the sum of the other, with an interval from resampling pairs."""
    picks = np.random.default_rng(0).integers(above.size, size=(RESAMPLES, above.size))
    low, high = np.percentile(above[picks].sum(axis=1) / below[picks].sum(axis=1), (2.5, 97.5))
    return RatioEstimate(float(above.sum() / below.sum()), float(low), float(high))


def ratio_of_medians(above: FloatArray, below: FloatArray) -> RatioEstimate:
    """The median of one over the median of the other, both resampled; a single value has no interval."""
    value = float(np.median(above) / np.median(below))
    if min(above.size, below.size) < 2:
        return RatioEstimate(value, 0.0, math.inf)
    generator = np.random.default_rng(0)
    resampled = [np.median(generator.choice(each, (RESAMPLES, each.size)), axis=1) for each in (above, below)]
    low, high = np.percentile(resampled[0] / resampled[1], (2.5, 97.5))
    return RatioEstimate(value, float(low), float(high))
