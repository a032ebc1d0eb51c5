"""A growing text with tables that are rebuilt when they are full.

Subclasses define the tables: `_append` appends tokens until capacity runs out, `_allocate` creates empty
tables. At its bound, a text drops its older half.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import Final

import numpy as np

from forerun.drafters.matches import Ints

SEED: Final = np.int64(secrets.randbits(63))
"""Hash seed, random per process, so that no text can be crafted to cause collisions."""


class Rebuildable(ABC):
    """At most `max_tokens` tokens of a text, with tables over them."""

    __slots__ = ("max_tokens",)

    def __init__(self, capacity: int, max_tokens: int) -> None:
        assert max_tokens >= 2, "half of the tokens must remain when the bound is reached"
        self.max_tokens = max_tokens
        self._allocate(min(max(capacity, 1), max_tokens), 0)

    @property
    @abstractmethod
    def text(self) -> Ints:
        """The tokens, without a copy."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Number of tokens that fit."""

    @property
    @abstractmethod
    def num_slots(self) -> int:
        """Slots of the hash table."""

    @abstractmethod
    def _append(self, tokens: Ints) -> int:
        """Append tokens until capacity runs out; returns how many were appended."""

    @abstractmethod
    def _allocate(self, capacity: int, num_slots: int) -> None:
        """Allocate empty tables for `capacity` tokens, with at least `num_slots` slots."""

    def __len__(self) -> int:
        return len(self.text)

    def extend(self, tokens: Ints) -> None:
        """Append tokens. The tokens that remain at the bound depend on the text, not on its parts."""
        half = self.max_tokens - self.max_tokens // 2
        excess = max(len(self) + len(tokens) - self.max_tokens, 0)
        num_dropped = -(-excess // half) * half
        if num_dropped > len(self):
            tokens = tokens[num_dropped - len(self) :]
            self._allocate(self.capacity, self.num_slots)
        num = self._append(tokens)
        while num < len(tokens):
            tokens = tokens[num:]
            self._rebuild(len(tokens))
            num = self._append(tokens)

    def _rebuild(self, num: int) -> None:
        """Rebuild larger tables for `num` more tokens; at the bound, drop the older half of the text."""
        text, capacity, num_slots = self.text, self.capacity, self.num_slots
        if len(text) < capacity:
            num_slots *= 2
        elif capacity < self.max_tokens:
            capacity = min(self.max_tokens, (len(text) + num) * 5 // 4 + 256)
        else:
            text = text[capacity - capacity // 2 :]
        self._allocate(capacity, num_slots)
        self.extend(text)


def make_hash_table(min_slots: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """An empty hash table; the number of slots is a power of two, at least `min_slots`."""
    return np.zeros(1 << (max(min_slots, 64) - 1).bit_length(), dtype=np.uint64)
