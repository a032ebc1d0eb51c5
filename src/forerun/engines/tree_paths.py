"""Draft trees as root-to-leaf paths, for engines whose attention verifies chains only.

Every path is verified as a chain of its own: one row for the last committed token and one for each of its
draft tokens. Tokens that paths share are computed in each of them, so paths are chosen by their gain per row.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from forerun.core.jit import compiled
from forerun.types import ROOT, BoolArray, Draft, FloatArray, IntArray

MAX_ROWS_PER_TOKEN: Final = 2.0
"""Most rows of all paths per draft token in them, the rows of the last committed token included."""


def select_paths(
    draft: Draft, survival: FloatArray, max_paths: int, min_gain_per_row: float = 0.0
) -> BoolArray:
    """Mask of the nodes on at most `max_paths` paths from the root; all nodes are chosen, none sampled.

    The first path is the one that emits most tokens in expectation, as engines without trees verify it. Then
    paths are added, or extended, in the order of their expected accepted tokens per row, while a row gains at
    least `min_gain_per_row` tokens and there are at most `MAX_ROWS_PER_TOKEN` rows per token.
    """
    return grow_paths(draft.parents, survival.astype(np.float64), max_paths, float(min_gain_per_row))


def paths_of(draft: Draft) -> list[list[int]]:
    """The nodes of every root-to-leaf path: the longest first, then the others in the order of leaves."""
    is_leaf = np.ones(len(draft), dtype=bool)
    is_leaf[draft.parents[draft.parents != ROOT]] = False
    paths = [draft.path(leaf) for leaf in np.flatnonzero(is_leaf).tolist()]
    longest = max(paths, key=len)
    return [longest, *(path for path in paths if path is not longest)]


def warm_up() -> None:
    """Compile what a selection needs, before the first request arrives."""
    select_paths(Draft.chain([0, 1]), np.array([0.5, 0.25]), 2)


@compiled
def grow_paths(parents: IntArray, survival: FloatArray, max_paths: int, min_gain_per_row: float) -> BoolArray:
    """The compiled part of `select_paths`."""
    depth, total = path_sums(parents, survival)
    kept, is_end = np.zeros(len(parents), dtype=np.bool_), np.zeros(len(parents), dtype=np.bool_)
    keep_path(parents, int(np.argmax(total)), kept, is_end)
    num_paths, num_tokens = 1, kept.sum()
    num_rows = num_tokens + 1
    while True:
        node, rows = best_addition(
            (parents, depth, total),
            (kept, is_end),
            (num_paths < max_paths, num_rows, num_tokens),
            min_gain_per_row,
        )
        if node < 0:
            return kept
        num_paths += keep_path(parents, node, kept, is_end)
        num_tokens = kept.sum()
        num_rows += rows


@compiled
def path_sums(parents: IntArray, survival: FloatArray) -> tuple[IntArray, FloatArray]:
    """The length of the path to each node, and the sum of its survivals."""
    depth, total = np.zeros(len(parents), dtype=np.int64), np.zeros(len(parents), dtype=np.float64)
    for node in range(len(parents)):
        above = parents[node]
        depth[node] = 1 if above < 0 else depth[above] + 1
        total[node] = survival[node] + (0.0 if above < 0 else total[above])
    return depth, total


@compiled
def keep_path(parents: IntArray, node: int, kept: BoolArray, is_end: BoolArray) -> int:
    """Keep the path to a node, in place; returns the number of paths that it adds."""
    is_end[node] = True
    while node >= 0 and not kept[node]:
        kept[node] = True
        node = parents[node]
    if node >= 0 and is_end[node]:
        is_end[node] = False
        return 0
    return 1


@compiled
def best_addition(
    tree: tuple[IntArray, IntArray, FloatArray],
    marks: tuple[BoolArray, BoolArray],
    counts: tuple[bool, int, int],
    min_gain_per_row: float,
) -> tuple[int, int]:
    """The end of the path, or of the extension of one, that gains most per row, and its rows; -1 for none.

    `counts` are whether there may be one more path, and the rows and tokens so far.
    """
    parents, depth, total = tree
    kept, is_end = marks
    may_add, num_rows, num_tokens = counts
    best, best_rows, best_gain = -1, 0, 0.0
    for node in np.flatnonzero(~kept):
        above = parents[node]
        while above >= 0 and not kept[above]:
            above = parents[above]
        gain, new, rows = total[node], depth[node], depth[node] + 1
        if above >= 0:
            gain, new = gain - total[above], new - depth[above]
            rows = new if is_end[above] else rows
        is_allowed = (rows == new or may_add) and num_rows + rows <= MAX_ROWS_PER_TOKEN * (num_tokens + new)
        if is_allowed and gain / rows >= min_gain_per_row and gain / rows > best_gain:
            best, best_rows, best_gain = node, rows, gain / rows
    return best, best_rows
