"""How often each token followed each context of a text: frequency tables of several orders.

One hash table holds two kinds of cells. A context's cell knows its most frequent continuation, how often that
and any followed, and where the list of its continuations begins; a continuation's cell knows its token, its
count and where the list goes on. Keys are 64-bit hashes of the tokens, seeded anew in every process, and are
not checked against the tokens: were two contexts ever to share one, a guess would be worse and nothing else.
"""

from __future__ import annotations

import numpy as np

from forerun.core.jit import compiled
from forerun.drafters.context_hash import Words, fold
from forerun.drafters.match_tree import (
    AGREE,
    CHANCE,
    FROM,
    MATCHED,
    SURVIVAL,
    TOTAL,
    UNSEEN,
    UNSEEN_EACH,
    Evidence,
    weigh,
)
from forerun.drafters.matches import Ints
from forerun.drafters.rebuildable import SEED, Rebuildable, make_table
from forerun.types import IntArray

MOST_CANDIDATES = 256
"""The most continuations of one context that are drawn from."""

_BEST, _BEST_COUNT, _TOTAL, _LIST = 0, 1, 2, 3
_TOKEN, _COUNT, _NEXT = 0, 1, 2
_LENGTH, _USED, _SEED = 0, 1, 2
_CONTEXT, _CONTINUATION = np.uint64(0x8CB92BA72F3D8DD7), np.uint64(0xAAAAAAAAAAAAAAAB)
_ONE = np.uint64(1)


class NgramCounts(Rebuildable):
    """A text, counted. `order` is the length of the longest n-gram: contexts have 1 to `order` - 1 tokens."""

    __slots__ = ("cells", "keys", "meta", "order", "tokens")

    def __init__(self, order: int, room: int, most: int) -> None:
        self.order = order
        super().__init__(room, most)

    @property
    def text(self) -> Ints:
        """The tokens that are counted, as they lie."""
        return self.tokens[: self.meta[_LENGTH]]

    @property
    def room(self) -> int:
        """How many tokens there is space for."""
        return len(self.tokens)

    @property
    def num_slots(self) -> int:
        """How many cells there are."""
        return len(self.keys)

    @property
    def num_bytes(self) -> int:
        """The memory that the tables hold."""
        return self.tokens.nbytes + self.keys.nbytes + self.cells.nbytes + self.meta.nbytes

    def _feed(self, tokens: Ints) -> int:
        return feed(self.tokens, self.keys, self.cells, self.meta, tokens, self.order)

    def _clear(self, room: int, slots: int) -> None:
        self.tokens: Ints = np.zeros(room, dtype=np.int32)
        self.keys: Words = make_table(max(slots, 4 * room))
        self.cells: Ints = np.zeros((len(self.keys), 4), dtype=np.int32)
        self.meta: IntArray = np.array([0, 0, SEED])

    def continuations(self, context: Ints) -> tuple[IntArray, IntArray]:
        """What followed the longest known end of a context and how often, of the last so many newcomers."""
        tokens, counts = np.empty((2, MOST_CANDIDATES), dtype=np.int64)
        tail = np.ascontiguousarray(context[: -self.order : -1])
        num = enumerate_continuations(self.keys, self.cells, self.meta, tail, tokens, counts)
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
        key = np.uint64(meta[_SEED])
        for length in range(1, min(order - 1, here) + 1):
            key = fold(key, text[here - length])
            context = _cell(keys, meta, key ^ _CONTEXT)
            _count(keys, cells, meta, context, fold(key ^ _CONTINUATION, tokens[i]), tokens[i])
    return tokens.size


@compiled
def _count(keys: Words, cells: Ints, meta: IntArray, context: int, key: np.uint64, token: int) -> None:
    """Count one continuation of a context; of the most frequent ones the most recent is the best."""
    at = _cell(keys, meta, key)
    if cells[at, _COUNT] == 0:
        cells[at, _TOKEN], cells[at, _NEXT] = token, cells[context, _LIST]
        cells[context, _LIST] = at + 1
    cells[at, _COUNT] += 1
    cells[context, _TOTAL] += 1
    if cells[at, _COUNT] >= cells[context, _BEST_COUNT]:
        cells[context, _BEST], cells[context, _BEST_COUNT] = token, cells[at, _COUNT]


@compiled
def _cell(keys: Words, meta: IntArray, key: np.uint64) -> int:
    """The cell of a key; a new one is all zeros."""
    at = _find(keys, key)
    if keys[at] != key:
        keys[at] = key
        meta[_USED] += 1
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
def _longest(keys: Words, meta: IntArray, tail: Ints, num: int) -> tuple[int, int]:
    """The length and the cell of the longest known context, of a tail that is given newest first.

    A context is only known if its shorter ones are, so the search goes up and stops at the first unknown.
    """
    key, cell = np.uint64(meta[_SEED]), 0
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
        length, cell = _longest(keys, meta, tail, num)
        if not length:
            return row
        tokens[row] = cells[cell, _BEST]
        votes = weigh(length, length, 1, 0, False)
        count, total = cells[cell, _BEST_COUNT], cells[cell, _TOTAL]
        chance = votes * count / (UNSEEN + UNSEEN_EACH + votes * total)
        survival *= chance
        evidence[row, SURVIVAL], evidence[row, CHANCE] = survival, chance
        evidence[row, MATCHED], evidence[row, AGREE], evidence[row, TOTAL] = length, count, total
        evidence[row, FROM] = 1
        for i in range(order - 1, 0, -1):
            tail[i] = tail[i - 1]
        tail[0] = tokens[row]
        num = min(num + 1, order - 1)
    return tokens.size


@compiled
def enumerate_continuations(
    keys: Words, cells: Ints, meta: IntArray, tail: Ints, tokens: IntArray, counts: IntArray
) -> int:
    """List what followed the longest known end of a context, newest first; returns how many tokens."""
    length, cell = _longest(keys, meta, tail, tail.size)
    if not length:
        return 0
    at, num = cells[cell, _LIST], 0
    while at and num < tokens.size:
        tokens[num], counts[num] = cells[at - 1, _TOKEN], cells[at - 1, _COUNT]
        at = cells[at - 1, _NEXT]
        num += 1
    return num
