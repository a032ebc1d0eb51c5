"""The KV cache: preallocated keys and values, one slot per sequence.

A slot's length is the number of its committed rows. A forward pass appends rows behind it. Committing raises
the length, after moving the rows of an accepted path together; rolling back leaves it. The cache stores rows
and knows no tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import Cache

from forerun.types import IntArray


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The shape of a token's keys and values: one of each per layer and key-value head."""

    num_layers: int
    num_heads: int
    key_size: int
    value_size: int


class SlottedCache(Cache):  # type: ignore[misc]  # transformers has no types
    """Keys and values for `num_slots` sequences of `max_length` tokens.

    Memory is zeroed, because masked rows count with weight 0, and 0 times NaN is NaN. On CPUs the operating
    system allocates it when it is first written.
    """

    def __init__(
        self, shape: CacheShape, num_slots: int, max_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layers=[])
        self.num_slots = num_slots
        self.max_length = max_length
        self.lengths: IntArray = np.zeros(num_slots, dtype=np.int64)
        rows = (shape.num_layers, num_slots * max_length, shape.num_heads)
        self._keys = torch.zeros(*rows, shape.key_size, dtype=dtype, device=device)
        self._values = torch.zeros(*rows, shape.value_size, dtype=dtype, device=device)
        self._free = list(range(num_slots))
        self._num_written: IntArray = np.zeros(num_slots, dtype=np.int64)
        self._write_rows = self._no_rows = torch.zeros(0, dtype=torch.long, device=device)
        self._by_layer = [
            (self._by_slot(k), self._by_slot(v)) for k, v in zip(self._keys, self._values, strict=True)
        ]
        self._view: tuple[slice, slice, slice] | None = None

    @property
    def num_free(self) -> int:
        """Free slots; each holds a sequence of up to `max_length` tokens."""
        return len(self._free)

    def allocate(self) -> int:
        """Allocate the lowest free slot, so that slots in use are neighbours and share a block."""
        slot = heapq.heappop(self._free)
        self.lengths[slot] = 0
        return slot

    def free(self, slot: int) -> None:
        """Free a slot and zero it, so that NaN rows of its last sequence do not reach the next one."""
        first = slot * self.max_length
        last = first + int(self._num_written[slot])
        self._keys[:, first:last].zero_()
        self._values[:, first:last].zero_()
        self._num_written[slot] = self.lengths[slot] = 0
        heapq.heappush(self._free, slot)

    @contextmanager
    def writing_to(self, slots: IntArray, rows: IntArray) -> Iterator[None]:
        """Direct the forward pass inside: its row i is written to row `rows[i]` of slot `slots[i]`."""
        np.maximum.at(self._num_written, slots, rows + 1)
        self._write_rows = torch.from_numpy(slots * self.max_length + rows).to(self._keys.device)
        try:
            yield
        finally:
            self._write_rows = self._no_rows

    def set_view(self, first: int, last: int, length: int) -> None:
        """Restrict `update` to the first `length` rows of these slots, for a model's own attention."""
        self._view = (slice(first, last), slice(None), slice(length))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the keys and values of a forward pass, [1, heads, rows, size]; returns all, or the view."""
        self._keys[layer_idx].index_copy_(0, self._write_rows, key_states[0].transpose(0, 1))
        self._values[layer_idx].index_copy_(0, self._write_rows, value_states[0].transpose(0, 1))
        keys, values = self._by_layer[layer_idx]
        return (keys, values) if self._view is None else (keys[self._view], values[self._view])

    def _by_slot(self, rows: torch.Tensor) -> torch.Tensor:
        """A layer as [slots, heads, length, size], without a copy."""
        return rows.view(self.num_slots, self.max_length, *rows.shape[1:]).transpose(1, 2)

    def move(self, slots: IntArray, source: IntArray, target: IntArray) -> None:
        """Copy rows within their slots, all layers at once; every source is read before any is written."""
        first = slots * self.max_length
        source_rows = torch.from_numpy(first + source).to(self._keys.device)
        target_rows = torch.from_numpy(first + target).to(self._keys.device)
        for rows in (self._keys, self._values):
            rows.index_copy_(1, target_rows, rows.index_select(1, source_rows))

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Zero for transformers: the runner always passes positions and masks."""
        return 0

    def get_max_length(self, layer_idx: int | None = None) -> int:  # noqa: ARG002
        """The capacity of a slot in tokens."""
        return self.max_length
