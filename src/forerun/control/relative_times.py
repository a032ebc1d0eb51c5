"""Measured step times relative to their predictions."""

from __future__ import annotations

from collections import deque
from math import exp, log, sqrt
from statistics import fmean, median
from typing import Final

NUM_RECENT: Final = 32
"""Steps that the average covers."""

MAX_DEVIATION: Final = 0.4
"""Deviation of a log ratio from the median beyond which it is clipped as disturbed."""

PRIOR_DEVIATION: Final = 0.1
"""Assumed standard deviation of one log ratio, with the weight of two steps."""


class RelativeTimes:
    """How long recent steps of one kind took, as a multiple of what the cost curve predicts for them.

    The curve follows the speed of the machine from step to step, so the multiple of a steady curve changes
    slowly even where the curve is wrong. While the curve itself changes, older ratios lag behind.
    """

    __slots__ = ("_log_ratios", "_mean", "_standard_error")

    def __init__(self) -> None:
        self._log_ratios: deque[float] = deque(maxlen=NUM_RECENT)
        self._mean, self._standard_error = 0.0, PRIOR_DEVIATION

    def record(self, seconds: float, predicted: float) -> None:
        """Record the measured and the predicted time of a step."""
        self._log_ratios.append(log(max(seconds, 1e-9) / predicted))
        middle = median(
            (0.0, 0.0, *self._log_ratios)
        )  # two steps as predicted, against a first disturbed one
        clipped = [
            min(max(each, middle - MAX_DEVIATION), middle + MAX_DEVIATION) for each in self._log_ratios
        ]
        num, self._mean = len(clipped), fmean(clipped)
        squares = sum((each - self._mean) ** 2 for each in clipped) + 2 * PRIOR_DEVIATION**2
        self._standard_error = sqrt(squares / (num + 1) / num)

    def __bool__(self) -> bool:
        return bool(self._log_ratios)

    @property
    def factor(self) -> float:
        """Measured over predicted time; 1 before the first measurement."""
        return exp(self._mean)

    @property
    def standard_error(self) -> float:
        """Standard error of the factor, relative to it."""
        return self._standard_error

    def clip(self, seconds: float, predicted: float) -> float:
        """A measured time without the part that is a disturbance: as far as steps of this kind deviate."""
        typical = predicted * self.factor
        return min(max(seconds, typical * exp(-MAX_DEVIATION)), typical * exp(MAX_DEVIATION))
