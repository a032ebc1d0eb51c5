"""Repeated measurement of step times: sweeps over row counts, their minimum and the spread of the repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from forerun.types import FloatArray

REPEATS: Final = 4
PROFILE_SECONDS: Final = 3.0
"""Profiling sweeps the row counts REPEATS times, or until PROFILE_SECONDS have passed, at least once."""

TILE_ROWS: Final = 16
"""Row granularity of matrix multiplication kernels; tiles are this large or a small multiple."""

MAX_STEP_SECONDS: Final = 1.0
"""Profiling does not double the row count beyond a forward pass that takes this many seconds."""


def profile_sizes(max_rows: int, block_sizes: Sequence[int] = ()) -> list[int]:
    """Row counts to profile up to `max_rows`: powers of two, and the first row beyond each tile.

    An engine that computes rows in blocks of certain sizes has a staircase of costs. There it is the last row
    of each stair and the first of the next one: stairs end at the block sizes, then at multiples of the
    largest.
    """
    powers = [2**exponent for exponent in range(max(2, max_rows).bit_length())]
    if not block_sizes:
        return sorted([*powers, *(num + 1 for num in powers[:-1] if num >= TILE_ROWS)])
    largest = max(block_sizes)
    ends = sorted({*block_sizes, *(largest * num for num in (*powers, 3))})
    last = next(end for end in ends if end >= max(max_rows, ends[1]))
    return sorted({1, *(row for end in ends if end < last for row in (end, end + 1)), last})


def largest_size(measure: Callable[[int], float], max_rows: int, *, time_limited: bool) -> int:
    """The largest power of two up to `max_rows` that is profiled."""
    largest = 2
    while 2 * largest <= max_rows and (measure(largest) < MAX_STEP_SECONDS or not time_limited):
        largest *= 2
    return largest


@dataclass(frozen=True, slots=True)
class CostSweeps:
    """Seconds by sweep and row count."""

    rows: Sequence[int]
    seconds: FloatArray

    @classmethod
    def measure(
        cls, measure: Callable[[int], float], rows: Sequence[int], *, repeats: int, max_seconds: float
    ) -> CostSweeps:
        """Sweep the row counts `repeats` times, or until `max_seconds` have passed, at least once."""
        sweeps: list[list[float]] = []
        while len(sweeps) < repeats and np.sum(sweeps) < max_seconds:
            sweeps.append([measure(num) for num in rows])
        return cls(rows, np.asarray(sweeps, dtype=np.float64))

    @property
    def minimum(self) -> FloatArray:
        """The fastest repeat of each row count: other load on the machine only adds time."""
        fastest: FloatArray = self.seconds.min(axis=0)
        return fastest

    @property
    def spread(self) -> float:
        """How well the fastest repeats are reproduced: the upper quartile over row counts of the log ratio
        between the two fastest. The speed of each sweep is removed before. 0 with one sweep.
        """
        if len(self.seconds) < 2:
            return 0.0
        logs = np.log(np.maximum(self.seconds, 1e-9))
        residuals = np.sort(logs - np.median(logs, axis=1, keepdims=True), axis=0)
        return float(np.quantile(residuals[1] - residuals[0], 0.75))
