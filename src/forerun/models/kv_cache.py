"""The KV cache: keys and values of many texts, a slot each, preallocated.

A slot has a length, the number of rows that are committed. Rows of a pass are written behind it; rolling
back is not raising the length, and keeping one path of a tree moves its rows together. The cache knows
places, not tokens.
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
    """What a model keeps of a token: in each layer, for each key-value head, a key and a value."""

    num_layers: int
    num_heads: int
    key_size: int
    value_size: int


class SlottedCache(Cache):  # type: ignore[misc]  # transformers has no types
    """Room for `num_slots` texts of `max_length` tokens.

    Memory is zeroed and on CPUs taken only where it is written to. It has to be zeroed: what may not be
    looked at counts with weight 0, and 0 times NaN is NaN.
    """

    def __init__(
        self, shape: CacheShape, num_slots: int, max_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layers=[])
        self.num_slots = num_slots
        self.max_length = max_length
        self.lengths: IntArray = np.zeros(num_slots, dtype=np.int64)
        places = (shape.num_layers, num_slots * max_length, shape.num_heads)
        self._keys = torch.zeros(*places, shape.key_size, dtype=dtype, device=device)
        self._values = torch.zeros(*places, shape.value_size, dtype=dtype, device=device)
        self._free = list(range(num_slots))
        self._touched: IntArray = np.zeros(num_slots, dtype=np.int64)
        self._at = self._nowhere = torch.zeros(0, dtype=torch.long, device=device)
        self._views = [
            (self._by_slot(k), self._by_slot(v)) for k, v in zip(self._keys, self._values, strict=True)
        ]
        self._shown: tuple[slice, slice, slice] | None = None

    @property
    def num_free(self) -> int:
        """How many slots nobody has; a text of up to `max_length` tokens fits each."""
        return len(self._free)

    def allocate(self) -> int:
        """The lowest free slot, empty; neighbours are attended to together."""
        slot = heapq.heappop(self._free)
        self.lengths[slot] = 0
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back, wiped: its next text must not meet what a broken one left."""
        first = slot * self.max_length
        last = first + int(self._touched[slot])
        self._keys[:, first:last].zero_()
        self._values[:, first:last].zero_()
        self._touched[slot] = self.lengths[slot] = 0
        heapq.heappush(self._free, slot)

    @contextmanager
    def aimed(self, slots: IntArray, rows: IntArray) -> Iterator[None]:
        """Where the pass inside writes: for each of its rows the slot, and the row of that slot."""
        np.maximum.at(self._touched, slots, rows + 1)
        self._at = torch.from_numpy(slots * self.max_length + rows).to(self._keys.device)
        try:
            yield
        finally:
            self._at = self._nowhere

    def show(self, first: int, last: int, length: int) -> None:
        """Say what an attention of the model's own sees: the beginnings of these slots."""
        self._shown = (slice(first, last), slice(None), slice(length))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the keys and values of a pass, [1, heads, rows, size]; returns all, or what is shown."""
        self._keys[layer_idx].index_copy_(0, self._at, key_states[0].transpose(0, 1))
        self._values[layer_idx].index_copy_(0, self._at, value_states[0].transpose(0, 1))
        keys, values = self._views[layer_idx]
        return (keys, values) if self._shown is None else (keys[self._shown], values[self._shown])

    def _by_slot(self, rows: torch.Tensor) -> torch.Tensor:
        """[slots, heads, length, size] of a layer, not copied."""
        return rows.view(self.num_slots, self.max_length, *rows.shape[1:]).transpose(1, 2)

    def move(self, slots: IntArray, source: IntArray, target: IntArray) -> None:
        """Copy rows within their slots, all layers at once; every source is read before any is written."""
        first = slots * self.max_length
        there = torch.from_numpy(first + source).to(self._keys.device)
        here = torch.from_numpy(first + target).to(self._keys.device)
        for rows in (self._keys, self._values):
            rows.index_copy_(1, here, rows.index_select(1, there))

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Nothing, as far as transformers should know: positions and masks are always given."""
        return 0

    def get_max_length(self, layer_idx: int | None = None) -> int:  # noqa: ARG002
        """How many tokens a slot holds."""
        return self.max_length
