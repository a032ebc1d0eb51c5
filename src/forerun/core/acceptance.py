"""The decisions about one guess, over any array type: does it stand, what is left to say, which token is it?

Leviathan et al., section 2.3, with two liberties that change nothing: p and q may have any mass, since
comparing by cross-multiplication needs no division; and all requests of a batch decide side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forerun.core import arrays
from forerun.core.arrays import PerRow, VocabRows
from forerun.core.jit import compiled, loosely_compiled
from forerun.core.row_threads import over_rows
from forerun.errors import InvalidDistribution
from forerun.types import Distribution, IntArray


def accepts(u: PerRow, p_x: PerRow, q_x: PerRow, p_mass: PerRow = 1, q_mass: PerRow = 1) -> PerRow:
    """Whether guess x, drawn from q, is kept: true with probability min(1, p(x) / q(x))."""
    return u * q_x * p_mass < p_x * q_mass


def residual(p: VocabRows, q: Sequence[Distribution], p_mass: PerRow, q_mass: PerRow) -> VocabRows:
    """What is left to say when a guess from q was refused: max(p - q, 0), up to scale."""
    if (p_mass == 1).all() and (q_mass == 1).all():
        return arrays.clamp_to_positive(p - arrays.stack(q))
    return arrays.clamp_to_positive(arrays.scale_rows(p, q_mass) - arrays.scale_rows(arrays.stack(q), p_mass))


def residual_mass(
    p: Sequence[Distribution], q: Sequence[Distribution], p_mass: PerRow, q_mass: PerRow
) -> PerRow:
    """The mass of `residual` for separate rows; on the CPU it is never written down."""
    if not arrays.on_cpu(p[0]):
        return arrays.row_sums(residual(arrays.stack(p), q, p_mass, q_mass))
    rows = zip(p, q, p_mass.tolist(), q_mass.tolist(), strict=True)
    return np.array([_excess(p_row.numpy(), q_row.numpy(), p_m, q_m) for p_row, q_row, p_m, q_m in rows])


def sample_inverse_cdf(weights: VocabRows, v: PerRow) -> IntArray:
    """Draw one token per row: the first whose running sum exceeds v of the total.

    Weights need not sum to 1. A token of weight 0 is never picked, even where v times the total rounds up
    to the total. On the CPU a compiled kernel does the same without storing the sums.
    """
    if arrays.on_cpu(weights):
        picked = np.empty(len(v), dtype=np.int64)
        over_rows(_pick_some, len(v), weights.numpy(), v, picked)
    else:
        picked = inverse_cdf_reference(weights, v)
    if (picked < 0).any():
        raise InvalidDistribution(
            "a row has nothing to draw from: its weights are NaN or all 0; check the logits"
        )
    return picked


def sample_residual(p: Sequence[Distribution], q: Sequence[Distribution], v: PerRow) -> IntArray:
    """`pick` from the `residual` of separate rows, not written down on the CPU; -1 where nothing is left."""
    if not arrays.on_cpu(p[0]):
        wide = arrays.stack(p)
        ones = arrays.ones_like_rows(wide)
        return inverse_cdf_reference(residual(wide, q, ones, ones), v)
    rows = zip(p, q, v.tolist(), strict=True)
    return np.array([_pick_residual(p_row.numpy(), q_row.numpy(), number) for p_row, q_row, number in rows])


def inverse_cdf_reference(weights: VocabRows, v: PerRow) -> IntArray:
    """`pick` as it is stated, over any array type; -1 where there is nothing to draw from."""
    running = arrays.row_cumsum(weights)
    total = running[:, -1:]
    last_with_weight = arrays.count_true(running < total)
    picked = np.minimum(arrays.count_true(running <= arrays.scale_rows(total, v)), last_with_weight)
    return np.where(arrays.count_true(total > 0) == 1, picked, -1)


_SPAN = 2048
"""Tokens whose weights are added up at a time."""


@compiled
def _pick_some(first: int, last: int, weights: Any, v: Any, picked: Any) -> None:
    """`pick_by_sums` for the rows from first to last, a span of tokens at a time and nothing stored."""
    for row in range(first, last):
        total = _sum(weights[row])
        picked[row] = -1
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
        picked[row] = where + _first_exceeding(weights[row, where : where + _SPAN], before, goal)


@compiled
def _pick_residual(p: Any, q: Any, v: float) -> int:
    """`_pick_some` for one row of max(p - q, 0)."""
    total = _excess(p, q, 1.0, 1.0)
    if not total > 0:
        return -1
    goal = v * total
    running, where, before = 0.0, 0, 0.0
    for begin in range(0, len(p), _SPAN):
        part = _excess(p[begin : begin + _SPAN], q[begin : begin + _SPAN], 1.0, 1.0)
        if part > 0:
            where, before = begin, running
        running += part
        if running > goal:
            break
    left = p[where : where + _SPAN] - q[where : where + _SPAN]
    return where + _first_exceeding(left, before, goal)


@compiled
def _first_exceeding(span: Any, running: float, goal: float) -> int:
    """Where the running sum passes the goal; the last entry that has weight, if rounding keeps it below."""
    last = 0
    for x in range(len(span)):
        if span[x] > 0:
            running += span[x]
            last = x
            if running > goal:
                break
    return last


@loosely_compiled("reassoc")
def _excess(p: Any, q: Any, p_mass: float, q_mass: float) -> float:
    """The sum of max(p - q, 0) over one row, each brought to the other's mass."""
    total = 0.0
    for x in range(len(p)):
        more = p[x] * q_mass - q[x] * p_mass
        total += more if more > 0.0 else 0.0
    return total


@loosely_compiled("reassoc")
def _sum(span: Any) -> float:
    """The sum of a few entries in float64, in whatever order is fastest."""
    total = 0.0
    for x in range(len(span)):
        total += span[x]
    return total
