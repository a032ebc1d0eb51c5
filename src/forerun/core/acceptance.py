"""The acceptance test of one draft token, its residual distribution, and sampling from weights.

Implements Leviathan et al., section 2.3, for any array type, with two differences that leave the result
unchanged: p and q may be unnormalised, because cross-multiplication replaces division; and all requests of a
batch are processed side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forerun.core import arrays
from forerun.core.arrays import PerRow, VocabRows
from forerun.core.jit import compiled, compiled_with_fastmath
from forerun.core.row_threads import over_rows
from forerun.errors import InvalidDistribution
from forerun.types import Distribution, IntArray


def accepts(u: PerRow, p_x: PerRow, q_x: PerRow, p_mass: PerRow = 1, q_mass: PerRow = 1) -> PerRow:
    """Accept draft token x, sampled from q: true with probability min(1, p(x) / q(x))."""
    return u * q_x * p_mass < p_x * q_mass


def residual(p: VocabRows, q: Sequence[Distribution], p_mass: PerRow, q_mass: PerRow) -> VocabRows:
    """The unnormalised distribution after a draft token from q is rejected: max(p - q, 0)."""
    if (p_mass == 1).all() and (q_mass == 1).all():
        return arrays.clamp_to_positive(p - arrays.stack(q))
    return arrays.clamp_to_positive(arrays.scale_rows(p, q_mass) - arrays.scale_rows(arrays.stack(q), p_mass))


def residual_mass(
    p: Sequence[Distribution], q: Sequence[Distribution], p_mass: PerRow, q_mass: PerRow
) -> PerRow:
    """The sum of each row of `residual`; on the CPU the residual itself is never materialised."""
    if not arrays.on_cpu(p[0]):
        return arrays.row_sums(residual(arrays.stack(p), q, p_mass, q_mass))
    rows = zip(p, q, p_mass.tolist(), q_mass.tolist(), strict=True)
    return np.array(
        [_residual_sum(p_row.numpy(), q_row.numpy(), p_m, q_m) for p_row, q_row, p_m, q_m in rows]
    )


def sample_inverse_cdf(weights: VocabRows, v: PerRow) -> IntArray:
    """Sample one token per row: the first token whose cumulative weight exceeds v times the total.

    Weights need not sum to 1. A token of weight 0 is never sampled, even where v times the total rounds up
    to the total. On the CPU a compiled kernel does the same without storing the cumulative sums.
    """
    if arrays.on_cpu(weights):
        sampled = np.empty(len(v), dtype=np.int64)
        over_rows(_sample_row_range, len(v), weights.numpy(), v, sampled)
    else:
        sampled = inverse_cdf_reference(weights, v)
    if (sampled < 0).any():
        raise InvalidDistribution("cannot sample: a row of weights is NaN or all 0; check the logits")
    return sampled


def sample_residual(p: Sequence[Distribution], q: Sequence[Distribution], v: PerRow) -> IntArray:
    """`sample_inverse_cdf` on the `residual` of separate rows; -1 where a residual has no mass.

    On the CPU the residual is never materialised.
    """
    if not arrays.on_cpu(p[0]):
        p_rows = arrays.stack(p)
        ones = arrays.ones_like_rows(p_rows)
        return inverse_cdf_reference(residual(p_rows, q, ones, ones), v)
    rows = zip(p, q, v.tolist(), strict=True)
    return np.array(
        [_sample_residual_row(p_row.numpy(), q_row.numpy(), number) for p_row, q_row, number in rows]
    )


def inverse_cdf_reference(weights: VocabRows, v: PerRow) -> IntArray:
    """Reference implementation of `sample_inverse_cdf` for any array type; -1 where a row has no mass."""
    running = arrays.row_cumsum(weights)
    total = running[:, -1:]
    last_with_weight = arrays.count_true(running < total)
    sampled = np.minimum(arrays.count_true(running <= arrays.scale_rows(total, v)), last_with_weight)
    return np.where(arrays.count_true(total > 0) == 1, sampled, -1)


_SPAN = 2048
"""Number of tokens whose weights are summed per block."""


@compiled
def _sample_row_range(first: int, last: int, weights: Any, v: Any, sampled: Any) -> None:
    """`inverse_cdf_reference` for rows first to last - 1, block by block without storing sums."""
    for row in range(first, last):
        total = _sum(weights[row])
        sampled[row] = -1
        if not total > 0:
            continue
        goal = v[row] * total
        running, where, before = 0.0, 0, 0.0
        for begin in range(0, weights.shape[1], _SPAN):
            part = _sum(weights[row, begin : begin + _SPAN])
            if part > 0:
                where, before = begin, running
            running += part
            if running > goal:
                break
        sampled[row] = where + _first_exceeding(weights[row, where : where + _SPAN], before, goal)


@compiled
def _sample_residual_row(p: Any, q: Any, v: float) -> int:
    """`_sample_row_range` for one row of max(p - q, 0)."""
    total = _residual_sum(p, q, 1.0, 1.0)
    if not total > 0:
        return -1
    goal = v * total
    running, where, before = 0.0, 0, 0.0
    for begin in range(0, len(p), _SPAN):
        part = _residual_sum(p[begin : begin + _SPAN], q[begin : begin + _SPAN], 1.0, 1.0)
        if part > 0:
            where, before = begin, running
        running += part
        if running > goal:
            break
    span = p[where : where + _SPAN] - q[where : where + _SPAN]
    return where + _first_exceeding(span, before, goal)


@compiled
def _first_exceeding(span: Any, running: float, goal: float) -> int:
    """Index where the cumulative sum exceeds the goal.

    Returns the last entry with positive weight where rounding keeps the sum at or below the goal.
    """
    last = 0
    for x in range(len(span)):
        if span[x] > 0:
            running += span[x]
            last = x
            if running > goal:
                break
    return last


@compiled_with_fastmath("reassoc")
def _residual_sum(p: Any, q: Any, p_mass: float, q_mass: float) -> float:
    """The sum of max(p - q, 0) over one row, with p and q scaled to a common mass."""
    total = 0.0
    for x in range(len(p)):
        excess = p[x] * q_mass - q[x] * p_mass
        total += excess if excess > 0.0 else 0.0
    return total


@compiled_with_fastmath("reassoc")
def _sum(span: Any) -> float:
    """The sum of a span in float64, in any order."""
    total = 0.0
    for x in range(len(span)):
        total += span[x]
    return total
