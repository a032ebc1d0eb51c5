"""Selection of draft tokens by their value against the time that they cost.

All requests of a batch share one forward pass, so their draft tokens compete for its rows: the most likely
are taken first, across requests. Drafting nothing is always an option.

The value of time is its long-run value, not its value in this step. Throughput is the sum of all tokens over
the sum of all seconds. That ratio is largest if each step maximises tokens - rate * seconds at the rate that
results (Dinkelbach 1967). Steps with poor drafts should therefore be short, and steps with good drafts may
take longer.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from forerun.control.cost_curve import interpolate
from forerun.core.jit import compiled
from forerun.types import BoolArray, FloatArray, IntArray

Curve = tuple[FloatArray, FloatArray]
"""Row counts, and the seconds of forward passes with that many rows."""

TimeValue = tuple[Curve, float]
"""Cost curve of a step, and the value of a second in tokens."""

MIN_RELATIVE_GAIN: Final = 0.01
"""Expected gain that speculation must reach, per token of non-speculative decoding. Estimates have errors,
and the maximum of many estimates is biased upwards.
"""

NUM_SURVIVAL_LEVELS: Final = 1000
"""Resolution of the bucket sort by survival."""


@compiled
def num_worth_verifying(
    survivals: FloatArray, tokens: float, rows: int, curve: Curve, rate: float, draft_seconds: float
) -> tuple[int, float]:
    """Number of draft tokens to verify, most likely first, and their net value in tokens.

    Without draft tokens the forward pass has `rows` rows and emits `tokens` tokens. A second is worth `rate`
    tokens. Drafting adds `draft_seconds` if any token is taken.
    """
    knots, seconds = curve
    baseline = interpolate(knots, seconds, rows)
    best, best_gain, expected_accepted, remaining = 0, MIN_RELATIVE_GAIN * tokens, 0.0, survivals.sum()
    for num in range(1, len(survivals) + 1):
        expected_accepted += survivals[num - 1]
        remaining -= survivals[num - 1]
        gain = expected_accepted - rate * (interpolate(knots, seconds, rows + num) + draft_seconds - baseline)
        if gain > best_gain:
            best, best_gain = num, gain
        elif gain + remaining <= best_gain:  # the curve is non-decreasing
            break
    return best, best_gain if best else 0.0


@compiled
def order_by_survival(survivals: FloatArray, eligible: BoolArray) -> IntArray:
    """Indices of the eligible candidates, most likely first, by a stable bucket sort with a resolution of
    1/1000. Stability keeps parents before their children.
    """
    starts = np.zeros(NUM_SURVIVAL_LEVELS + 1, dtype=np.int64)
    for node in range(len(survivals)):
        if eligible[node]:
            starts[_level(survivals[node]) + 1] += 1
    for level in range(NUM_SURVIVAL_LEVELS):
        starts[level + 1] += starts[level]
    order = np.empty(starts[NUM_SURVIVAL_LEVELS], dtype=np.int64)
    for node in range(len(survivals)):
        if eligible[node]:
            level = _level(survivals[node])
            order[starts[level]] = node
            starts[level] += 1
    return order


@compiled
def _level(survival: float) -> int:
    return min(max(int((1.0 - survival) * NUM_SURVIVAL_LEVELS), 0), NUM_SURVIVAL_LEVELS - 1)


@compiled
def keep_most_likely(
    keep: BoolArray,
    survivals: FloatArray,
    eligible: BoolArray,
    num_requests: int,
    rows: int,
    time_value: TimeValue,
) -> None:
    """Add to the mask as many eligible candidates as pay beside those already in it, most likely first."""
    curve, rate = time_value
    tokens = float(num_requests)
    for node in range(len(keep)):
        if keep[node]:
            tokens += survivals[node]
            rows += 1
    order = order_by_survival(survivals, eligible)
    num, _ = num_worth_verifying(survivals[order], tokens, rows, curve, rate, 0.0)
    for node in order[:num]:
        keep[node] = True


@compiled
def draft_lengths(
    probabilities: FloatArray,
    max_lengths: IntArray,
    rows: int,
    curve: Curve,
    rate: float,
    pass_seconds: float,
) -> IntArray:
    """Draft length per request for a drafter that runs one forward pass per depth.

    Each token of a request's chain is accepted with the same probability, given its prefix.
    """
    num_requests, max_length = len(max_lengths), max_lengths.max() if len(max_lengths) else 0
    budgets, best_gain, best_depth = np.zeros(num_requests, dtype=np.int64), 0.0, 0
    survivals = np.empty(num_requests * max_length)
    owners = np.empty(num_requests * max_length, dtype=np.int64)
    prefix_survival, num = np.ones(num_requests), 0
    for depth in range(1, max_length + 1):
        for i in range(num_requests):
            if max_lengths[i] >= depth:
                prefix_survival[i] *= probabilities[i]
                survivals[num], owners[num] = prefix_survival[i], i
                num += 1
        order = np.argsort(-survivals[:num])
        num_taken, gain = num_worth_verifying(
            survivals[:num][order], num_requests, rows, curve, rate, depth * pass_seconds
        )
        if gain > best_gain:
            best_gain, best_depth = gain, depth
            budgets = np.bincount(owners[order[:num_taken]], minlength=num_requests)
        elif depth > 2 * best_depth + 2:
            break
    return budgets
