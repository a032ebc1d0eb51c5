"""top-p (nucleus) truncation: the smallest set of most likely tokens with at least top_p of the mass.

vLLM's definition on sorted rows: cumulative sums from the least likely token up, in float64 and rounded to
float32; a token is removed while its sum is at most 1 - top_p; the most likely token is always kept; of
equally likely tokens the lower ids are removed first. On the CPU a compiled kernel finds the same set without
sorting.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.core.jit import compiled
from forerun.core.row_threads import over_rows
from forerun.core.tensors import torch


def apply_top_p(p: torch.Tensor, top_p: np.ndarray) -> None:
    """Zero the tokens outside the nucleus of each row and renormalise, in place; a no-op for top_p = 1."""
    rows = np.flatnonzero(top_p < 1)
    if not rows.size:
        return
    cut = (np.float32(1.0) - top_p.astype(np.float32))[rows]
    if p.device.type == "cpu":
        over_rows(_apply_row_range, len(rows), p.numpy(), rows, cut)
    else:
        index = torch.from_numpy(rows).to(p.device)
        p[index] = top_p_by_sorting(p[index], torch.from_numpy(cut).to(p.device))


def top_p_by_sorting(p: torch.Tensor, cut: torch.Tensor) -> torch.Tensor:
    """Reference implementation: the definition on sorted rows."""
    ascending, order = p.sort(dim=-1, stable=True)
    outside = ascending.cumsum(-1, dtype=torch.float64).float() <= cut[:, None]
    outside[:, -1] = False
    kept = ascending.masked_fill_(outside, 0)
    kept /= kept.sum(-1, keepdim=True, dtype=torch.float64).float()
    return torch.zeros_like(p).scatter_(1, order, kept)


@compiled
def _apply_row_range(first: int, last: int, p: Any, rows: Any, cuts: Any) -> None:
    """`apply_top_p` for the listed rows first to last - 1."""
    mass = np.empty(2048)
    for i in range(first, last):
        row = p[rows[i]]
        threshold, below = _find_threshold(row, cuts[i], mass)
        _zero_below(row, threshold, below, cuts[i])


@compiled
def _find_threshold(row: Any, cut: float, mass: Any) -> Any:
    """The bits of the least likely token that is kept, and the mass of all less likely tokens.

    A radix search: the bits of positive floats are ordered like the floats. Each scan sums the mass of tokens
    by their next bits, among those that share the bits found so far, and ascends from the least likely token
    until the sum exceeds the cut.
    """
    bits = row.view(np.uint32)
    found, below, shift = np.uint64(0), 0.0, np.uint64(32)
    for width in (np.uint64(11), np.uint64(11), np.uint64(10)):
        known = shift
        shift -= width
        mask = (np.uint64(1) << width) - np.uint64(1)
        mass[:] = 0.0
        for x in range(len(row)):
            word = np.uint64(bits[x])
            if word >> known == found:
                mass[(word >> shift) & mask] += row[x]
        top = len(mass) - 1
        while top > 0 and mass[top] == 0.0:
            top -= 1
        digit = 0
        while digit < top and np.float32(below + mass[digit]) <= cut:
            below += mass[digit]
            digit += 1
        found = (found << width) | np.uint64(digit)
    return np.uint32(found), below


@compiled
def _zero_below(row: Any, threshold: Any, below: float, cut: float) -> None:
    """Zero every token below the threshold, and ties at the threshold up to the cut; then renormalise."""
    bits = row.view(np.uint32)
    above, at_threshold = 0.0, 0
    for x in range(len(row)):
        above += row[x] * (bits[x] > threshold)
        at_threshold += bits[x] == threshold
    kept = above
    for x in range(len(row)):
        if bits[x] < threshold:
            row[x] = 0.0
        elif bits[x] == threshold:
            below += row[x]
            at_threshold -= 1
            is_kept = np.float32(below) > cut or (at_threshold == 0 and above == 0.0)
            kept += row[x] * is_kept
            row[x] *= is_kept
    total = np.float32(kept)
    for x in range(len(row)):
        row[x] /= total
