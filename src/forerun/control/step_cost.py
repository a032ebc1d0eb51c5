"""Cost of a target forward pass by its number of rows, learnt online.

The curve is nearly flat, in steps, where decoding is memory-bound, and rises with every row where it is
compute-bound. It is profiled at startup and corrected by every later step.

Machine speed drifts: the same forward pass may take 1.5 times as long a minute later. The time of a step
observes the product of speed factor and curve. Nearby steps with other row counts share the speed factor and
so identify the two. A Kalman filter over the log speed factor and the log curve keeps their full covariance.
Many steps with one row count therefore do not reduce the uncertainty about other row counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from forerun.core.jit import compiled
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

OBSERVATION_VARIANCE: Final = 0.08**2
SPEED_DRIFT_VARIANCE: Final = 0.03**2
CURVE_DRIFT_VARIANCE: Final = 5e-6
SPEED_PRIOR_VARIANCE: Final = 10.0**2
CURVE_PRIOR_VARIANCE: Final = 0.2**2
"""Variances of logarithms: of a step time around its prediction (observation noise); of the drift per step of
the speed factor and of a curve point; of the prior of the speed factor; and of the profiled curve, which may
have been measured on a busy machine.
"""

CORRELATION_LENGTH: Final = 2.0
"""Prior errors of curve points correlate: by a factor of 1/e less per this many doublings of the row count.
"""

UPPER_CURVE_DEVIATIONS: Final = 0.5
"""Standard deviations added to the cost of wider passes in `StepCost.upper_curve`."""

MAX_INNOVATION: Final = 0.25
"""Log innovation beyond which an observation is down-weighted as disturbed, unless twice its standard
deviation is larger.
"""


def profile_sizes(max_rows: int) -> list[int]:
    """Row counts to profile up to `max_rows`: powers of two, and the first row beyond each tile."""
    powers = [2**exponent for exponent in range(max(2, max_rows).bit_length())]
    return sorted([*powers, *(num + 1 for num in powers[:-1] if num >= TILE_ROWS)])


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
        cls, measure: Callable[[int], float], max_rows: int, *, time_limited: bool = True
    ) -> StepCost:
        """Profile `measure`, which runs a step with a given number of rows and returns its seconds.

        Takes the minimum over a few sweeps, because other load on the machine only adds time. Row counts are
        powers of two up to `max_rows`, and the first row beyond each tile, where the cost often jumps. The
        curve is linear between them and extrapolated linearly. Without `time_limited`, slow steps are
        measured as often as fast ones: distributed ranks must agree on the steps they run.
        """
        largest = 2
        measure(1)  # warm-up
        while 2 * largest <= max_rows and (measure(largest) < MAX_STEP_SECONDS or not time_limited):
            largest *= 2
        rows = profile_sizes(largest)
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


@compiled
def isotonic_fit(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted least-squares non-decreasing fit, by pooling adjacent violators."""
    means, totals = np.empty(len(values)), np.empty(len(values))
    sizes = np.empty(len(values), dtype=np.int64)
    blocks = 0
    for i in range(len(values)):
        means[blocks], totals[blocks], sizes[blocks] = values[i], weights[i], 1
        blocks += 1
        while blocks > 1 and means[blocks - 2] > means[blocks - 1]:
            total = totals[blocks - 2] + totals[blocks - 1]
            both = means[blocks - 2] * totals[blocks - 2] + means[blocks - 1] * totals[blocks - 1]
            means[blocks - 2], totals[blocks - 2] = both / total, total
            sizes[blocks - 2] += sizes[blocks - 1]
            blocks -= 1
    out = np.empty(len(values))
    at = 0
    for block in range(blocks):
        out[at : at + sizes[block]] = means[block]
        at += sizes[block]
    return out


@compiled
def interpolation_weights(rows: float, knots: FloatArray) -> FloatArray:
    """Weight of each knot in linear interpolation at `rows`, clamped to the knots."""
    weights = np.zeros(len(knots))
    right = min(max(int(np.searchsorted(knots, rows)), 1), len(knots) - 1)
    width = knots[right] - knots[right - 1]
    weights[right] = min(max((rows - knots[right - 1]) / width, 0.0), 1.0)
    weights[right - 1] = 1.0 - weights[right]
    return weights


@compiled
def isotonic_curve(state: FloatArray, covariance: FloatArray, first: int, last: int) -> FloatArray:
    """Curve of a band at the current speed factor, after a precision-weighted isotonic fit."""
    values, weights = np.empty(last - first), np.empty(last - first)
    for i in range(last - first):
        values[i] = np.exp(state[first + i] + state[0])
        weights[i] = 1.0 / (covariance[first + i, first + i] + OBSERVATION_VARIANCE)
    return isotonic_fit(values, weights)


@compiled
def upper_bound_curve(
    rows: float, knots: FloatArray, state: FloatArray, covariance: FloatArray, first: int, last: int
) -> tuple[FloatArray, FloatArray]:
    """Knots and costs with a knot added at `rows`. Costs beyond it are raised by `UPPER_CURVE_DEVIATIONS`
    standard deviations of the log difference.
    """
    seconds, weights = isotonic_curve(state, covariance, first, last), interpolation_weights(rows, knots)
    band_covariance = covariance[first:last, first:last]
    cross_covariance = np.zeros(len(knots))
    variance_here = 0.0
    for i in range(len(knots)):
        for j in range(len(knots)):
            cross_covariance[i] += band_covariance[i, j] * weights[j]
        variance_here += weights[i] * cross_covariance[i]
    upper = seconds.copy()
    for i in range(len(knots) - 1, -1, -1):
        if knots[i] > rows:
            upper[i] *= np.exp(
                UPPER_CURVE_DEVIATIONS
                * np.sqrt(max(band_covariance[i, i] + variance_here - 2.0 * cross_covariance[i], 0.0))
            )
        if i + 1 < len(knots):
            upper[i] = min(upper[i], upper[i + 1])  # stay non-decreasing
    insert_at = int(np.searchsorted(knots, rows))
    if insert_at < len(knots) and knots[insert_at] == rows:
        return knots, upper
    merged_knots, costs = np.empty(len(knots) + 1), np.empty(len(knots) + 1)
    merged_knots[:insert_at], merged_knots[insert_at], merged_knots[insert_at + 1 :] = (
        knots[:insert_at],
        rows,
        knots[insert_at:],
    )
    costs[:insert_at], costs[insert_at + 1 :] = upper[:insert_at], upper[insert_at:]
    costs[insert_at] = interpolate(knots, seconds, rows)
    return merged_knots, costs


@compiled
def kalman_step(
    observation: tuple[float, float],
    knots: FloatArray,
    state: FloatArray,
    covariance: FloatArray,
    correlation: FloatArray,
    first: int,
    prior_variance: float,
) -> None:
    """Predict and update of the filter; `observation` is the row count and the log of the seconds."""
    rows, log_seconds = observation
    kalman_predict(covariance, correlation, first, prior_variance)
    kalman_update(rows, log_seconds, knots, state, covariance, first)


@compiled
def kalman_predict(
    covariance: FloatArray, correlation: FloatArray, first: int, prior_variance: float
) -> None:
    """Add drift variance to the speed factor and to the curve, in place. No curve point exceeds its prior
    variance.
    """
    covariance[0, 0] += SPEED_DRIFT_VARIANCE
    if prior_variance <= 0.0:
        return
    headroom = np.empty(len(correlation))
    for i in range(len(correlation)):
        headroom[i] = np.sqrt(max(1.0 - covariance[first + i, first + i] / prior_variance, 0.0))
    for i in range(len(correlation)):
        for j in range(len(correlation)):
            covariance[first + i, first + j] += (
                CURVE_DRIFT_VARIANCE * correlation[i, j] * headroom[i] * headroom[j]
            )


@compiled
def kalman_update(
    rows: float, log_seconds: float, knots: FloatArray, state: FloatArray, covariance: FloatArray, first: int
) -> None:
    """Kalman update by a step of `rows` rows that took exp(`log_seconds`) seconds, in place."""
    size = len(knots)
    weights = interpolation_weights(rows, knots)
    for i in range(size):
        weights[i] *= np.exp(state[first + i])
    expected = weights.sum()
    weights /= expected
    if rows > knots[-1]:
        expected = interpolate(knots, isotonic_curve(state, covariance, first, first + size), rows) / np.exp(
            state[0]
        )
    innovation = log_seconds - np.log(expected) - state[0]
    gain_numerator = covariance[:, 0].copy()
    for i in range(size):
        gain_numerator += weights[i] * covariance[:, first + i]
    variance = gain_numerator[0] + OBSERVATION_VARIANCE
    for i in range(size):
        variance += weights[i] * gain_numerator[first + i]
    max_innovation = max(MAX_INNOVATION, 2.0 * np.sqrt(variance))
    variance *= max(1.0, abs(innovation) / max_innovation)  # large innovations get less weight
    for i in range(len(state)):
        state[i] += gain_numerator[i] / variance * innovation
        for j in range(len(state)):
            covariance[i, j] -= gain_numerator[i] * gain_numerator[j] / variance


@compiled
def interpolate(knots: FloatArray, seconds: FloatArray, rows: float) -> float:
    """Seconds of a forward pass: piecewise linear, extrapolated beyond the last knot."""
    if rows <= knots[0]:
        return float(seconds[0])
    right = 1
    while right < len(knots) - 1 and knots[right] < rows:
        right += 1
    slope = (seconds[right] - seconds[right - 1]) / (knots[right] - knots[right - 1])
    return float(seconds[right] + (rows - knots[right]) * slope)
