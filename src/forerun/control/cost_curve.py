"""Piecewise linear, non-decreasing curves: interpolation and isotonic regression."""

from __future__ import annotations

import numpy as np

from forerun.core.jit import compiled
from forerun.types import FloatArray


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
