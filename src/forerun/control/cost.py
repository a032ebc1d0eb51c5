"""What a pass of the target costs, by how many rows it has.

Where decoding waits for memory the curve is nearly flat, in steps; where it waits for arithmetic it rises
with every row. Either way it is measured, not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from forerun.types import FloatArray

ROWS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Where the curve is measured; between these it is a line, and behind them it goes on as it ended."""

REPEATS: Final = 4
ENOUGH: Final = 3.0
"""The curve is measured so many times, or until that took so many seconds; once at least."""


class StepCost:
    """Seconds by rows, a curve that never falls."""

    def __init__(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        self._rows = np.asarray(rows, dtype=np.float64)
        self._seconds = np.maximum.accumulate(np.asarray(seconds, dtype=np.float64))

    @classmethod
    def measured(cls, seconds: Callable[[int], float], rows: Sequence[int] = ROWS) -> StepCost:
        """The curve of a step that says how long it took with so many rows: the fastest of a few turns, since
        what a busy machine adds is not the step's.
        """
        seconds(rows[-1])  # whatever is made at first use
        turns: list[list[float]] = []
        while len(turns) < REPEATS and np.sum(turns) < ENOUGH:
            turns.append([seconds(num) for num in rows])
        return cls(rows, np.min(turns, axis=0).tolist())

    def __call__(self, rows: FloatArray) -> FloatArray:
        """Seconds of passes with so many rows."""
        slope = (self._seconds[-1] - self._seconds[-2]) / (self._rows[-1] - self._rows[-2])
        beyond = np.maximum(rows - self._rows[-1], 0.0) * slope
        seconds: FloatArray = np.interp(rows, self._rows, self._seconds) + beyond
        return seconds
