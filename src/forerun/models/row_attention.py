"""Attention for one row at a time: its result depends on the row's own context alone, bit for bit.

Library kernels choose their algorithm, and with it the order of their sums, by the shape of the whole batch.
Here every row and head is a loop of its own over the row's context in the order of the text: committed rows
of its sequence, then its ancestors among the uncommitted ones. Scores, softmax and sums are in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import torch

from forerun.core.jit import compiled_with_fastmath
from forerun.core.row_threads import over_rows
from forerun.models.attention import Segment
from forerun.types import Float32Array, IntArray

DTYPES: Final = (torch.float32, torch.bfloat16)

_compiled = compiled_with_fastmath("reassoc", "contract", "nsz")
"""The order of a sum may be any that depends on its length alone."""


_TASKS_PER_THREAD: Final = 2

ROWS_PER_RUN: Final = 16
"""Consecutive rows of a sequence whose keys and values are read from the cache once, by one thread."""


@dataclass(frozen=True, eq=False)
class RowContexts:
    """The cache rows to which each row of a forward pass attends.

    Row i attends to `lengths[i]` cache rows from `first[i]` on, then to
    `ancestors[starts[i]:starts[i + 1]]`, itself last.
    """

    first: IntArray
    lengths: IntArray
    ancestors: IntArray
    starts: IntArray

    @classmethod
    def of(cls, segments: Sequence[Segment], slot_rows: int) -> RowContexts:
        """The contexts of all rows; a slot has `slot_rows` cache rows."""
        num_rows = [segment.num_rows for segment in segments]
        ancestors, counts = [], []
        for segment in segments:
            first_uncommitted = segment.slot * slot_rows + segment.length
            ancestors.append(first_uncommitted + np.nonzero(segment.visible)[1])
            counts.append(segment.visible.sum(1))
        return cls(
            np.repeat([segment.slot * slot_rows for segment in segments], num_rows),
            np.repeat([segment.length for segment in segments], num_rows),
            np.concatenate(ancestors),
            np.concatenate([[0], np.cumsum(np.concatenate(counts))]),
        )

    def select(self, rows: IntArray) -> RowContexts:
        """The contexts of some rows."""
        counts = self.starts[rows + 1] - self.starts[rows]
        starts = np.concatenate([[0], np.cumsum(counts)])
        offsets = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
        ancestors = self.ancestors[np.repeat(self.starts[rows], counts) + offsets]
        return RowContexts(self.first[rows], self.lengths[rows], ancestors, starts)

    @cached_property
    def runs(self) -> IntArray:
        """The first row of every run, and the number of rows."""
        starts = [0, *(np.flatnonzero(np.diff(self.first)) + 1), len(self.first)]
        return np.concatenate(
            [*(np.arange(*each, ROWS_PER_RUN) for each in pairwise(starts)), starts[-1:]], dtype=np.int64
        )


def attend_rows(
    contexts: RowContexts, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Attention of rows [rows, heads, size] over the cache rows of their contexts.

    `key` and `value` have all cache rows, [cache rows, key heads, size]. Rows beyond the contexts are padding
    and get the output of the last row. Returns the dtype of the query.
    """
    num_rows, size, runs = len(contexts.first), query.shape[2], contexts.runs
    output = np.empty((len(query), query.shape[1], value.shape[2]), dtype=np.float32)
    over_rows(
        _attend,
        (len(runs) - 1) * key.shape[1],
        query.float().numpy(),
        _bits(key),
        _bits(value),
        (runs, contexts.first, contexts.lengths, contexts.ancestors, contexts.starts),
        np.float32(size**-0.5 if scaling is None else scaling),
        output,
        min_rows_per_thread=_TASKS_PER_THREAD,
    )
    output[num_rows:] = output[num_rows - 1]
    return torch.from_numpy(output).to(query.dtype)


def _bits(rows: torch.Tensor) -> np.ndarray:
    """float32 as it is; bfloat16 as the upper half of float32's bits."""
    return rows.numpy() if rows.dtype == torch.float32 else rows.view(torch.uint16).numpy()


@_compiled
def _attend(
    first_task: int,
    last_task: int,
    query: Float32Array,
    key: np.ndarray,
    value: np.ndarray,
    contexts: tuple[IntArray, IntArray, IntArray, IntArray, IntArray],
    scaling: np.float32,
    output: Float32Array,
) -> None:
    """Attention for some pairs of a run and a key head."""
    runs, first, lengths, ancestors, starts = contexts
    num_key_heads, groups = key.shape[1], query.shape[1] // key.shape[1]
    for task in range(first_task, last_task):
        key_head, rows = task % num_key_heads, (runs[task // num_key_heads], runs[task // num_key_heads + 1])
        begin = first[rows[0]]
        end = ancestors[starts[rows[1]] - 1] + 1  # a row is its own last ancestor, and rows are in order
        keys, values = _gather(key, key_head, begin, end), _gather(value, key_head, begin, end)
        for row in range(rows[0], rows[1]):
            own = ancestors[starts[row] : starts[row + 1]] - begin
            num, own_keys, own_values = lengths[row] + len(own), keys, values
            if own[-1] != num - 1:  # a tree: rows that are no ancestors come between
                own_keys, own_values = _path(keys, lengths[row], own), _path(values, lengths[row], own)
            heads = slice(key_head * groups, (key_head + 1) * groups)
            weights = _scores(query[row, heads], own_keys[:num], scaling)
            for head in range(groups):
                _softmax(weights[head])
            _weighted_sum(weights, own_values[:num], output[row, heads])


@_compiled
def _gather(rows: np.ndarray, head: int, begin: int, end: int) -> Float32Array:
    """One head of a range of cache rows in float32, [positions, size]."""
    gathered = np.empty((end - begin, rows.shape[2]), np.float32)
    bits = gathered.view(np.uint32)
    for position in range(end - begin):
        for i in range(rows.shape[2]):
            if rows.itemsize == 2:  # bfloat16; the compiler keeps one of the two
                bits[position, i] = np.uint32(rows[begin + position, head, i]) << np.uint32(16)
            else:
                gathered[position, i] = rows[begin + position, head, i]
    return gathered


@_compiled
def _path(rows: Float32Array, num_committed: int, ancestors: IntArray) -> Float32Array:
    """The committed ones of some rows, and ancestors."""
    path = np.empty((num_committed + len(ancestors), rows.shape[1]), np.float32)
    path[:num_committed] = rows[:num_committed]
    for position in range(len(ancestors)):
        path[num_committed + position] = rows[ancestors[position]]
    return path


@_compiled
def _scores(query: Float32Array, key: Float32Array, scaling: np.float32) -> Float32Array:
    """The scaled products [heads, positions] of query heads and keys."""
    scores = np.empty((len(query), len(key)), np.float32)
    for position in range(len(key)):
        for head in range(len(query)):
            total = np.float32(0.0)
            for i in range(query.shape[1]):
                total += query[head, i] * key[position, i]
            scores[head, position] = total * scaling
    return scores


@_compiled
def _softmax(weights: Float32Array) -> None:
    """Softmax over positions, in place."""
    largest = weights[0]
    for position in range(1, len(weights)):
        largest = max(largest, weights[position])
    for position in range(len(weights)):
        weights[position] -= largest
    _exp(weights)
    total = np.float32(0.0)
    for position in range(len(weights)):
        total += weights[position]
    for position in range(len(weights)):
        weights[position] /= total


@_compiled
def _exp(x: Float32Array) -> None:
    """exp(x) for x <= 0, in place, to the last bit or two: 2**n times a polynomial (Cephes).

    Library functions are not vectorised here, and differ between machines.
    """
    power = np.empty(len(x), np.int32)
    for i in range(len(x)):
        at_least = max(x[i], np.float32(-87.0))
        n = np.floor(at_least * np.float32(1.44269504) + np.float32(0.5))
        r = at_least - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
        p = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
        p = p * r + np.float32(8.3334519073e-3)
        p = p * r + np.float32(4.1665795894e-2)
        p = p * r + np.float32(1.6666665459e-1)
        p = p * r + np.float32(5.0000001201e-1)
        x[i] = p * r * r + r + np.float32(1.0)
        power[i] = (np.int32(n) + np.int32(127)) << np.int32(23)  # the bits of 2**n
    powers = power.view(np.float32)
    for i in range(len(x)):
        x[i] *= powers[i]


@_compiled
def _weighted_sum(weights: Float32Array, value: Float32Array, output: Float32Array) -> None:
    """The sums of values by the weights of each query head, four positions at a time."""
    num_in_fours = len(value) // 4 * 4
    output[:] = np.float32(0.0)
    for first in range(0, num_in_fours, 4):
        for head in range(len(output)):
            w0, w1 = weights[head, first], weights[head, first + 1]
            w2, w3 = weights[head, first + 2], weights[head, first + 3]
            for i in range(output.shape[1]):
                output[head, i] += (
                    w0 * value[first, i]
                    + w1 * value[first + 1, i]
                    + w2 * value[first + 2, i]
                    + w3 * value[first + 3, i]
                )
    for position in range(num_in_fours, len(value)):
        for head in range(len(output)):
            weight = weights[head, position]
            for i in range(output.shape[1]):
                output[head, i] += weight * value[position, i]
