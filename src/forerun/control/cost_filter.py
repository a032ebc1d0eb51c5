"""Kalman filter that separates the speed of the machine from the step-cost curve.

Machine speed drifts: the same forward pass may take 1.5 times as long a minute later. The time of a step
observes the product of speed factor and curve. Nearby steps with other row counts share the speed factor and
so identify the two. The filter keeps the full covariance of the log speed factor and the log curves. Many
steps with one row count therefore do not reduce the uncertainty about other row counts.

The state holds the log speed factor, then the log curve of each band, from index `first` up to, not
including, `last`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from forerun.control.cost_curve import interpolate, interpolation_weights, isotonic_fit
from forerun.core.jit import compiled
from forerun.types import FloatArray

OBSERVATION_VARIANCE: Final = 0.08**2
SPEED_DRIFT_VARIANCE: Final = 0.03**2
CURVE_DRIFT_VARIANCE: Final = 5e-6
SPEED_PRIOR_VARIANCE: Final = 10.0**2
CURVE_PRIOR_VARIANCE: Final = 0.2**2
"""Variances of logarithms: of a step time around its prediction (observation noise); of the drift per step of
the speed factor and of a curve point; of the prior of the speed factor; and of the profiled curve, which may
have been measured on a busy machine.
"""

UPPER_CURVE_DEVIATIONS: Final = 0.5
"""Standard deviations added to the cost of wider passes in `StepCost.upper_curve`."""

MAX_INNOVATION: Final = 0.25
"""Log innovation beyond which an observation is down-weighted as disturbed, unless twice its standard
deviation is larger.
"""


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
