"""How often each token followed each context of a text: frequency tables of several orders.

One hash table holds two kinds of cells. A context's cell knows its most frequent continuation, how often that
and any followed, and where the list of its continuations begins; a continuation's cell knows its token, its
count and where the list goes on. Keys are 64-bit hashes of the tokens and are not checked against them:
two contexts in one table share a key with a probability of 10^-9, and then a guess is worse, nothing else.
"""

from __future__ import annotations

import numpy as np

from forerun.core.compiled import compiled
from forerun.drafters.hashing import EMPTY, Words, fold
from forerun.drafters.sightings import Ints
from forerun.drafters.tree import (
    AGREE,
    CHANCE,
    FROM,
    MATCHED,
    SURVIVAL,
    TOTAL,
    Evidence,
    weigh,
)
from forerun.types import IntArray

MOST_CANDIDATES = 256
"""The most continuations of one context that are drawn from."""

_BEST, _BEST_COUNT, _TOTAL, _LIST = 0, 1, 2, 3
_TOKEN, _COUNT, _NEXT = 0, 1, 2
_LENGTH, _USED = 0, 1
_CONTEXT, _CONTINUATION = np.uint64(0x8CB92BA72F3D8DD7), np.uint64(0xAAAAAAAAAAAAAAAB)
_ONE = np.uint64(1)


class Counts:
    """The last `most` tokens of a text or more, up to twice as many, counted.

    `order` is the length of the longest n-gram, so that contexts have 1 to `order` - 1 tokens. At the bound
    the older half is forgotten by counting the rest anew.
    """

    __slots__ = ("cells", "keys", "meta", "most", "order", "text")

    def __init__(self, order: int, room: int, most: int) -> None:
        self.order = order
        self.most = most
        self._clear(min(room, 2 * most), 0)

    def __len__(self) -> int:
        return int(self.meta[_LENGTH])

    @property
    def num_bytes(self) -> int:
        """The memory that the tables hold."""
        return self.text.nbytes + self.keys.nbytes + self.cells.nbytes + self.meta.nbytes

    def extend(self, tokens: Ints) -> None:
        """Append tokens and count what follows what."""
        tokens = tokens[-2 * self.most :]
        num = feed(self.text, self.keys, self.cells, self.meta, tokens, self.order)
        while num < len(tokens):
            tokens = tokens[num:]
            self._make_room(len(tokens))
            num = feed(self.text, self.keys, self.cells, self.meta, tokens, self.order)

    def _make_room(self, num: int) -> None:
        """Count anew with room for more; at the bound, without the older half."""
        text, room, slots = self.text[: len(self)], len(self.text), len(self.keys)
        if len(text) < room:
            slots *= 2
        elif room < 2 * self.most:
            room = min(2 * self.most, 5 * (len(text) + num) // 4 + 256)
        else:
            text = text[-self.most :]
        self._clear(room, slots)
        self.extend(text)

    def _clear(self, room: int, slots: int) -> None:
        """Make room for so many tokens, and for so many cells or four a token."""
        slots = 1 << (max(slots, 4 * room, 64) - 1).bit_length()
        self.text: Ints = np.empty(room, dtype=np.int32)
        self.keys: Words = np.zeros(slots, dtype=np.uint64)
        self.cells: Ints = np.empty((slots, 4), dtype=np.int32)
        self.meta: IntArray = np.zeros(2, dtype=np.int64)

    def continuations(self, context: Ints) -> tuple[IntArray, IntArray]:
        """What followed the longest known end of a context and how often, of the last so many newcomers."""
        tokens, counts = np.empty((2, MOST_CANDIDATES), dtype=np.int64)
        num = enumerate_continuations(self.keys, self.cells, context[-(self.order - 1) :], tokens, counts)
        return tokens[:num], counts[:num]


@compiled
def feed(text: Ints, keys: Words, cells: Ints, meta: IntArray, tokens: Ints, order: int) -> int:
    """Append tokens, count them at every order, and return how many of them there was room for."""
    most_used = keys.size * 3 // 4 - 2 * order
    for i in range(tokens.size):
        here = meta[_LENGTH]
        if here == text.size or meta[_USED] > most_used:
            return i
        text[here] = tokens[i]
        meta[_LENGTH] += 1
        key = EMPTY
        for length in range(1, min(order - 1, here) + 1):
            key = fold(key, text[here - length])
            context = _cell(keys, cells, meta, key ^ _CONTEXT)
            _count(keys, cells, meta, context, fold(key ^ _CONTINUATION, tokens[i]), tokens[i])
    return tokens.size


@compiled
def _count(keys: Words, cells: Ints, meta: IntArray, context: int, key: np.uint64, token: int) -> None:
    """Count one continuation of a context; of the most frequent ones the most recent is the best."""
    at = _cell(keys, cells, meta, key)
    if cells[at, _COUNT] == 0:
        cells[at, _TOKEN], cells[at, _NEXT] = token, cells[context, _LIST]
        cells[context, _LIST] = at + 1
    cells[at, _COUNT] += 1
    cells[context, _TOTAL] += 1
    if cells[at, _COUNT] >= cells[context, _BEST_COUNT]:
        cells[context, _BEST], cells[context, _BEST_COUNT] = token, cells[at, _COUNT]


@compiled
def _cell(keys: Words, cells: Ints, meta: IntArray, key: np.uint64) -> int:
    """The cell of a key, cleared if it is new."""
    at = _find(keys, key)
    if keys[at] != key:
        keys[at] = key
        meta[_USED] += 1
        for i in range(4):
            cells[at, i] = 0
    return at


@compiled
def _find(keys: Words, key: np.uint64) -> int:
    """Where a key is, or where it would be."""
    mask = np.uint64(keys.size - 1)
    slot = key & mask
    while keys[slot] and keys[slot] != key:
        slot = (slot + _ONE) & mask
    return int(np.int64(slot))


@compiled
def _longest(keys: Words, tail: Ints, num: int) -> tuple[int, int]:
    """The length and the cell of the longest known context, of a tail that is given newest first.

    A context is only known if its shorter ones are, so the search goes up and stops at the first unknown.
    """
    key, cell = EMPTY, 0
    for length in range(1, num + 1):
        key = fold(key, tail[length - 1])
        at = _find(keys, key ^ _CONTEXT)
        if keys[at] != key ^ _CONTEXT:
            return length - 1, cell
        cell = at
    return num, cell


@compiled
def predict(
    text: Ints, keys: Words, cells: Ints, meta: IntArray, order: int, tokens: IntArray, evidence: Evidence
) -> int:
    """Guess the most frequent continuation of the longest known context, then the next, and so on.

    Writes as many guesses as there is room for and returns how many there were.
    """
    num = min(order - 1, meta[_LENGTH])
    tail = np.empty(order, dtype=np.int32)
    for i in range(num):
        tail[i] = text[meta[_LENGTH] - 1 - i]
    survival = 1.0
    for row in range(tokens.size):
        length, cell = _longest(keys, tail, num)
        if not length:
            return row
        tokens[row] = cells[cell, _BEST]
        votes = weigh(length, length, 1, 0, False)
        count, total = cells[cell, _BEST_COUNT], cells[cell, _TOTAL]
        survival *= votes * count / (1.2 + votes * total)
        evidence[row, SURVIVAL], evidence[row, CHANCE] = survival, votes * count / (1.2 + votes * total)
        evidence[row, MATCHED], evidence[row, AGREE], evidence[row, TOTAL] = length, count, total
        evidence[row, FROM] = 1
        for i in range(order - 1, 0, -1):
            tail[i] = tail[i - 1]
        tail[0] = tokens[row]
        num = min(num + 1, order - 1)
    return tokens.size


@compiled
def enumerate_continuations(
    keys: Words, cells: Ints, context: Ints, tokens: IntArray, counts: IntArray
) -> int:
    """List what followed the longest known end of a context, newest first; returns how many tokens."""
    length, cell = _longest(keys, context[::-1], context.size)
    if not length:
        return 0
    at, num = cells[cell, _LIST], 0
    while at and num < tokens.size:
        tokens[num], counts[num] = cells[at - 1, _TOKEN], cells[at - 1, _COUNT]
        at = cells[at - 1, _NEXT]
        num += 1
    return num
