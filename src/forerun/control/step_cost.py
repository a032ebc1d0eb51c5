"""Cost of a target forward pass by its number of rows, learnt online.

The curve is nearly flat, in steps, where decoding is memory-bound, and rises with every row where it is
compute-bound. It is profiled at startup, and a Kalman filter (`cost_filter`) corrects it by
every later step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from forerun.control.cost_curve import interpolate
from forerun.control.cost_filter import (
    CURVE_PRIOR_VARIANCE,
    SPEED_PRIOR_VARIANCE,
    isotonic_curve,
    kalman_step,
    upper_bound_curve,
)
from forerun.types import FloatArray

REPEATS: Final = 4
PROFILE_SECONDS: Final = 3.0
"""Profiling sweeps the row counts REPEATS times, or until PROFILE_SECONDS have passed, at least once."""

TILE_ROWS: Final = 16
"""Row granularity of matrix multiplication kernels; tiles are this large or a small multiple."""

MAX_STEP_SECONDS: Final = 1.0
"""Profiling does not double the row count beyond a forward pass that takes this many seconds."""

CONTEXT_BAND_EDGES: Final = (4096, 16384, 65536, 262144, 1048576)
"""Total tokens of context in a step at which one band's curve ends and the next begins."""

CORRELATION_LENGTH: Final = 2.0
"""Prior errors of curve points correlate: by a factor of 1/e less per this many doublings of the row count.
"""


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


class StepCost:
    """Seconds by number of rows: one non-decreasing curve per band of context, separately for steps with
    greedy requests only and for steps with sampled requests.

    `prior_variance` is the variance of the logarithm of the initial curve.
    """

    def __init__(
        self, rows: Sequence[int], seconds: Sequence[float], *, prior_variance: float = CURVE_PRIOR_VARIANCE
    ) -> None:
        self.rows: FloatArray = np.asarray(rows, dtype=np.float64)
        if len(rows) < 2 or not (np.diff(self.rows) > 0).all() or not _are_times(seconds):
            raise ValueError(
                "a step-cost curve needs two points or more, with increasing rows and positive seconds;"
                f" got rows {list(rows)} and seconds {list(seconds)}"
            )
        self._prior_variance = prior_variance
        log_distance = np.abs(np.subtract.outer(np.log2(self.rows), np.log2(self.rows)))
        self._correlation = np.exp(-log_distance / CORRELATION_LENGTH)
        self._bands: dict[int, slice] = {}
        self._state = np.zeros(1)  # log speed factor, then the log curve of each band
        self._covariance = np.full((1, 1), SPEED_PRIOR_VARIANCE)
        self._add_band(0, np.log(np.asarray(seconds, dtype=np.float64)))

    def _add_band(self, number: int, curve: FloatArray, parent: slice | None = None) -> slice:
        """Add the curve of a band. A curve copied from a `parent` band is correlated with it, so observations
        of either inform both.
        """
        size_before, size = len(self._state), len(curve)
        covariance = np.zeros((size_before + size, size_before + size))
        covariance[:size_before, :size_before] = self._covariance
        covariance[size_before:, size_before:] = self._prior_variance * self._correlation
        if parent is not None:
            covariance[size_before:, :size_before] = self._covariance[parent]
            covariance[:size_before, size_before:] = self._covariance[:, parent]
            covariance[size_before:, size_before:] += self._covariance[parent, parent]
        self._state, self._covariance = np.concatenate([self._state, curve]), covariance
        self._bands[number] = slice(size_before, size_before + size)
        return self._bands[number]

    @classmethod
    def profile(
        cls,
        measure: Callable[[int], float],
        max_rows: int,
        *,
        block_sizes: Sequence[int] = (),
        time_limited: bool = True,
    ) -> StepCost:
        """Profile `measure`, which runs a step with a given number of rows and returns its seconds.

        Takes the minimum over a few sweeps, because other load on the machine only adds time. Row counts are
        powers of two up to `max_rows`, and the first row beyond each tile, where the cost often jumps; with
        `block_sizes`, the ends of stairs. The curve is linear between them and extrapolated linearly. Without
        `time_limited`, slow steps are measured as often as fast ones: distributed ranks must agree on the
        steps they run.
        """
        largest = 2
        measure(1)  # warm-up
        while 2 * largest <= max_rows and (measure(largest) < MAX_STEP_SECONDS or not time_limited):
            largest *= 2
        rows = profile_sizes(largest, block_sizes)
        repeats: list[list[float]] = []
        while len(repeats) < REPEATS and (np.sum(repeats) < PROFILE_SECONDS or not time_limited):
            repeats.append([measure(num) for num in rows])
        return cls(rows, np.min(repeats, axis=0).tolist())

    def to_dict(self) -> dict[str, Any]:
        """Curves without the current speed factor; `from_dict` restores them."""
        return {
            "rows": self.rows.tolist(),
            "bands": {
                str(number): np.exp(self._state[band]).tolist() for number, band in self._bands.items()
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StepCost:
        """Restore curves from `to_dict`."""
        bands = {int(number): seconds for number, seconds in values["bands"].items()}
        cost = cls(values["rows"], bands.pop(0))
        for number, seconds in bands.items():
            if len(seconds) != len(cost.rows) or not _are_times(seconds):
                raise ValueError(
                    f"band {number} has {len(seconds)} values; expected {len(cost.rows)}, all positive"
                )
            cost._add_band(number, np.log(seconds))
        return cost

    @classmethod
    def default(cls) -> StepCost:
        """Curve without a measurement: memory-bound decoding in which each row adds 1.2 % of a step (SmolLM2
        on two cores). The first step sets the scale.
        """
        return cls((1, 8, 64, 512), [1 + 0.012 * rows for rows in (0, 7, 63, 511)])

    def curve_at(self, context: int = 0, *, sampled: bool = False) -> FloatArray:
        """Seconds at `rows` with this many tokens of context. Steps with `sampled` requests have their own
        curve, because sampling takes time per row. An isotonic fit weighted by precision keeps the curve
        non-decreasing.
        """
        band = self._band(context, sampled)  # may add a band
        return isotonic_curve(self._state, self._covariance, band.start, band.stop)

    def upper_curve(
        self, rows: int, context: int = 0, *, sampled: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """Knots and seconds as seen from a step of `rows` rows, which becomes a knot.

        The cost of wider steps is raised by the uncertainty of the difference, so that uncertainty never
        favours speculation.
        """
        band = self._band(context, sampled)
        return upper_bound_curve(float(rows), self.rows, self._state, self._covariance, band.start, band.stop)

    def at(self, rows: int, context: int = 0, *, sampled: bool = False) -> float:
        """Seconds of one forward pass."""
        return interpolate(self.rows, self.curve_at(context, sampled=sampled), float(rows))

    def covers(self, rows: int) -> bool:
        """Whether the row count is close enough to the curve for a comparison."""
        return bool(0 < rows <= 2 * self.rows[-1])

    def curve(self, *, sampled: bool) -> FloatArray | None:
        """Curve of the shortest context band observed, None if there is none. Does not add a band."""
        bands = [number for number in self._bands if number // (len(CONTEXT_BAND_EDGES) + 1) == sampled]
        if not bands:
            return None
        band = self._bands[min(bands)]
        return isotonic_curve(self._state, self._covariance, band.start, band.stop)

    def update(self, rows: int, seconds: float, context: int = 0, *, sampled: bool = False) -> None:
        """Correct the curves by the measured time of a step."""
        band = self._band(context, sampled)
        observation, filter_state = (
            (float(rows), math.log(max(seconds, 1e-9))),
            (self._state, self._covariance),
        )
        kalman_step(
            observation, self.rows, *filter_state, self._correlation, band.start, self._prior_variance
        )

    def _band(self, context: int, sampled: bool) -> slice:
        """Slice of a band's curve in the state; a new band starts as a copy of its nearest neighbour."""
        per_kind = len(CONTEXT_BAND_EDGES) + 1
        number = int(np.searchsorted(CONTEXT_BAND_EDGES, context)) + per_kind * sampled
        known = self._bands.get(number)
        if known is not None:
            return known

        def distance(other: int) -> tuple[int, bool]:
            return abs(other % per_kind - number % per_kind), other // per_kind != number // per_kind

        nearest = self._bands[min(self._bands, key=distance)]
        return self._add_band(number, self._state[nearest].copy(), nearest)


def _are_times(seconds: Sequence[float]) -> bool:
    values = np.asarray(seconds, dtype=np.float64)
    return bool(np.isfinite(values).all() and (values > 0).all())
