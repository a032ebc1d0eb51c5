"""Attention for one row at a time: its result depends on the row's own context alone, bit for bit.

Library kernels choose their algorithm, and with it the order of their sums, by the shape of the whole batch.
Here every row and key head is a loop of its own over the row's context in the order of the text: committed
rows of its sequence, then its ancestors among the uncommitted ones. Scores, softmax and sums are in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, eq=False)
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


def attend_rows(
    contexts: RowContexts, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Attention of rows [rows, heads, size] over the cache rows of their contexts.

    `key` and `value` have all cache rows, [cache rows, key heads, size]. Rows beyond the contexts are padding
    and get the output of the last row. Returns the dtype of the query.
    """
    num_rows, size = len(contexts.first), query.shape[2]
    output = np.empty((len(query), query.shape[1], value.shape[2]), dtype=np.float32)
    over_rows(
        _attend,
        num_rows * key.shape[1],
        query.float().numpy(),
        _bits(key),
        _bits(value),
        (contexts.first, contexts.lengths, contexts.ancestors, contexts.starts),
        np.float32(size**-0.5 if scaling is None else scaling),
        output,
        min_rows_per_thread=key.shape[1],
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
    contexts: tuple[IntArray, IntArray, IntArray, IntArray],
    scaling: np.float32,
    output: Float32Array,
) -> None:
    """Attention for some pairs of a row and a key head."""
    first, lengths, ancestors, starts = contexts
    num_key_heads, groups = key.shape[1], query.shape[1] // key.shape[1]
    for task in range(first_task, last_task):
        row, key_head = task // num_key_heads, task % num_key_heads
        num_committed, num_ancestors = lengths[row], starts[row + 1] - starts[row]
        context = np.empty(num_committed + num_ancestors, np.int64)
        for position in range(num_committed):
            context[position] = first[row] + position
        for position in range(num_ancestors):
            context[num_committed + position] = ancestors[starts[row] + position]
        heads = slice(key_head * groups, (key_head + 1) * groups)
        weights = _scores(query[row, heads], _gather(key, key_head, context), scaling)
        _softmax(weights)
        _weighted_sum(weights, _gather(value, key_head, context), output[row, heads])


@_compiled
def _gather(rows: np.ndarray, head: int, context: IntArray) -> Float32Array:
    """One head of the cache rows of a context in float32, [positions, size]."""
    gathered = np.empty((len(context), rows.shape[2]), np.float32)
    bits = gathered.view(np.uint32)
    for position in range(len(context)):
        row = context[position]
        for i in range(rows.shape[2]):
            if rows.itemsize == 2:  # bfloat16; the compiler keeps one of the two
                bits[position, i] = np.uint32(rows[row, head, i]) << np.uint32(16)
            else:
                gathered[position, i] = rows[row, head, i]
    return gathered


@_compiled
def _scores(query: Float32Array, key: Float32Array, scaling: np.float32) -> Float32Array:
    """The scaled products [heads, positions] of query heads and keys."""
    scores = np.empty((len(query), len(key)), np.float32)
    for head in range(len(query)):
        for position in range(len(key)):
            total = np.float32(0.0)
            for i in range(query.shape[1]):
                total += query[head, i] * key[position, i]
            scores[head, position] = total * scaling
    return scores


@_compiled
def _softmax(weights: Float32Array) -> None:
    """Softmax over positions [heads, positions], in place."""
    groups, num = weights.shape
    for head in range(groups):
        largest = weights[head, 0]
        for position in range(1, num):
            largest = max(largest, weights[head, position])
        for position in range(num):
            weights[head, position] -= largest
        _exp(weights[head])
        total = np.float32(0.0)
        for position in range(num):
            total += weights[head, position]
        for position in range(num):
            weights[head, position] /= total


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
    """The sums of values by the weights of each query head."""
    for head in range(len(weights)):
        for i in range(value.shape[1]):
            output[head, i] = np.float32(0.0)
        for position in range(len(value)):
            weight = weights[head, position]
            for i in range(value.shape[1]):
                output[head, i] += weight * value[position, i]
