"""top-p: the smallest set of most likely tokens that holds a share of the mass.

vLLM's rule, stated on sorted rows: running sums from the least likely token up, in float64 and rounded to
float32; a token goes while its sum is at most 1 - top_p; the last one stays whatever happens; of equally
likely tokens the lower ids go first. On the CPU a compiled kernel finds the same set without sorting.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.core.jit import compiled
from forerun.core.row_threads import over_rows
from forerun.core.tensors import torch


def keep_nucleus(p: torch.Tensor, top_p: np.ndarray) -> None:
    """Zero what lies outside each row's nucleus and normalise the rest, in place; top_p 1 changes nothing."""
    rows = np.flatnonzero(top_p < 1)
    if not rows.size:
        return
    cut = (np.float32(1.0) - top_p.astype(np.float32))[rows]
    if p.device.type == "cpu":
        over_rows(_keep_some, len(rows), p.numpy(), rows, cut)
    else:
        where = torch.from_numpy(rows).to(p.device)
        p[where] = nucleus_by_sorting(p[where], torch.from_numpy(cut).to(p.device))


def nucleus_by_sorting(p: torch.Tensor, cut: torch.Tensor) -> torch.Tensor:
    """The rule as it is stated."""
    ascending, order = p.sort(dim=-1, stable=True)
    outside = ascending.cumsum(-1, dtype=torch.float64).float() <= cut[:, None]
    outside[:, -1] = False
    kept = ascending.masked_fill_(outside, 0)
    kept /= kept.sum(-1, keepdim=True, dtype=torch.float64).float()
    return torch.zeros_like(p).scatter_(1, order, kept)


@compiled
def _keep_some(first: int, last: int, p: Any, rows: Any, cuts: Any) -> None:
    """`keep_nucleus` for the listed rows from first to last."""
    mass = np.empty(2048)
    for i in range(first, last):
        row = p[rows[i]]
        edge, below = _edge(row, cuts[i], mass)
        _keep(row, edge, below, cuts[i])


@compiled
def _edge(row: Any, cut: float, mass: Any) -> Any:
    """The bits of the least likely token that stays, and the mass of everything less likely.

    A radix search, since the bits of positive floats order like the floats: each pass sums the mass of
    tokens by their next bits, among those that share the bits found so far, and walks up from the least
    likely until the sum exceeds the cut.
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
def _keep(row: Any, edge: Any, below: float, cut: float) -> None:
    """Zero every token under the edge, and of those at the edge as many as the cut still takes; normalise."""
    bits = row.view(np.uint32)
    above, at_edge = 0.0, 0
    for x in range(len(row)):
        above += row[x] * (bits[x] > edge)
        at_edge += bits[x] == edge
    kept = above
    for x in range(len(row)):
        if bits[x] < edge:
            row[x] = 0.0
        elif bits[x] == edge:
            below += row[x]
            at_edge -= 1
            stays = np.float32(below) > cut or (at_edge == 0 and above == 0.0)
            kept += row[x] * stays
            row[x] *= stays
    total = np.float32(kept)
    for x in range(len(row)):
        row[x] /= total
