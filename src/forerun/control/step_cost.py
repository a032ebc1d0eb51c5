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
from forerun.control.cost_sweeps import (
    PROFILE_SECONDS,
    REPEATS,
    CostSweeps,
    largest_size,
    profile_sizes,
)
from forerun.types import FloatArray

CONTEXT_BAND_EDGES: Final = (4096, 16384, 65536, 262144, 1048576)
"""Total tokens of context in a step at which one band's curve ends and the next begins."""

CORRELATION_LENGTH: Final = 2.0
"""Prior errors of curve points correlate: by a factor of 1/e less per this many doublings of the row count.
"""

PROVISIONAL_PRIOR_VARIANCE: Final = 0.4**2
"""Prior variance of the logarithm of a provisional curve: twice the deviation of an undisturbed one."""


class StepCost:
    """Seconds by number of rows: one non-decreasing curve per band of context, separately for steps with
    greedy requests only and for steps with sampled requests.

    `prior_variance` is the variance of the logarithm of the initial curve. A `provisional` curve is used
    until the next start, which profiles again. `profiled` are the seconds at `rows` before any correction,
    and `spread` is that of the repeats they were taken from (`CostSweeps`).
    """

    def __init__(
        self,
        rows: Sequence[int],
        seconds: Sequence[float],
        *,
        prior_variance: float = CURVE_PRIOR_VARIANCE,
        provisional: bool = False,
    ) -> None:
        self.rows: FloatArray = np.asarray(rows, dtype=np.float64)
        if len(rows) < 2 or not (np.diff(self.rows) > 0).all() or not _are_times(seconds):
            raise ValueError(
                "a step-cost curve needs two points or more, with increasing rows and positive seconds;"
                f" got rows {list(rows)} and seconds {list(seconds)}"
            )
        self.profiled: FloatArray = np.asarray(seconds, dtype=np.float64)
        self.provisional = provisional
        self.spread = 0.0
        self._prior_variance = prior_variance
        log_distance = np.abs(np.subtract.outer(np.log2(self.rows), np.log2(self.rows)))
        self._correlation = np.exp(-log_distance / CORRELATION_LENGTH)
        self._bands: dict[int, slice] = {}
        self._state = np.zeros(1)  # log speed factor, then the log curve of each band
        self._covariance = np.full((1, 1), SPEED_PRIOR_VARIANCE)
        self._add_band(0, np.log(self.profiled))

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
        measure(1)  # warm-up
        rows = profile_sizes(largest_size(measure, max_rows, time_limited=time_limited), block_sizes)
        seconds = PROFILE_SECONDS if time_limited else math.inf
        sweeps = CostSweeps.measure(measure, rows, repeats=REPEATS, max_seconds=seconds)
        cost = cls(rows, sweeps.minimum.tolist())
        cost.spread = sweeps.spread
        return cost

    def to_dict(self) -> dict[str, Any]:
        """Curves without the current speed factor; `from_dict` restores them."""
        return {
            "rows": self.rows.tolist(),
            "profiled": self.profiled.tolist(),
            "provisional": self.provisional,
            "bands": {
                str(number): np.exp(self._state[band]).tolist() for number, band in self._bands.items()
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StepCost:
        """Restore curves from `to_dict`; earlier versions wrote neither `profiled` nor `provisional`."""
        bands = {int(number): seconds for number, seconds in values["bands"].items()}
        provisional = bool(values.get("provisional", False))
        prior_variance = PROVISIONAL_PRIOR_VARIANCE if provisional else CURVE_PRIOR_VARIANCE
        rows, profiled = values["rows"], values.get("profiled", bands[0])
        if not _are_times(rows):
            raise ValueError(f"`rows` are {rows}; expected positive numbers")
        if len(profiled) != len(rows) or not _are_times(profiled):
            raise ValueError(f"`profiled` has {len(profiled)} values; expected {len(rows)}, all positive")
        cost = cls(rows, bands.pop(0), prior_variance=prior_variance, provisional=provisional)
        cost.profiled = np.asarray(profiled, dtype=np.float64)
        for number, seconds in bands.items():
            if len(seconds) != len(cost.rows) or not _are_times(seconds):
                raise ValueError(
                    f"band {number} has {len(seconds)} values; expected {len(cost.rows)}, all positive"
                )
            cost._add_band(number, np.log(seconds))
        return cost

    def as_provisional(self) -> StepCost:
        """The same curves with a larger prior variance, so that steps correct them sooner."""
        return StepCost.from_dict({**self.to_dict(), "provisional": True})

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
