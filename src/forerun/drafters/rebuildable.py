"""Text that grows, and tables over it that are made anew when they are full.

What a table needs is said by whoever has one: `_feed` appends as many tokens as there is room for, `_clear`
makes empty tables. At its bound a text forgets its older half.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import Final

import numpy as np

from forerun.drafters.matches import Ints

SEED: Final = np.int64(secrets.randbits(63))
"""Where hashing starts, another one in every process: nobody can make up a text that hashes badly."""


class Rebuildable(ABC):
    """At most `most` tokens of a text, with tables over them."""

    __slots__ = ("most",)

    def __init__(self, room: int, most: int) -> None:
        assert most >= 2, "a bound is halved when it is reached"
        self.most = most
        self._clear(min(max(room, 1), most), 0)

    @property
    @abstractmethod
    def text(self) -> Ints:
        """The tokens, as they lie."""

    @property
    @abstractmethod
    def room(self) -> int:
        """How many tokens there is space for."""

    @property
    @abstractmethod
    def num_slots(self) -> int:
        """How many places the hash table has."""

    @abstractmethod
    def _feed(self, tokens: Ints) -> int:
        """Append tokens and return how many of them there was room for."""

    @abstractmethod
    def _clear(self, room: int, slots: int) -> None:
        """Make empty tables for so many tokens, with so many slots or more."""

    def __len__(self) -> int:
        return len(self.text)

    def extend(self, tokens: Ints) -> None:
        """Append tokens."""
        tokens = tokens[-self.most :]
        num = self._feed(tokens)
        while num < len(tokens):
            tokens = tokens[num:]
            self._make_room(len(tokens))
            num = self._feed(tokens)

    def _make_room(self, num: int) -> None:
        """Read the text anew into larger tables; at the bound, without its older half."""
        text, room, slots = self.text, self.room, self.num_slots
        if len(text) < room:
            slots *= 2
        elif room < self.most:
            room = min(self.most, (len(text) + num) * 5 // 4 + 256)
        else:
            text = text[room - room // 2 :]
        self._clear(room, slots)
        self.extend(text)


def make_table(least: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """An empty hash table with at least so many slots, a power of two."""
    return np.zeros(1 << (max(least, 64) - 1).bit_length(), dtype=np.uint64)
