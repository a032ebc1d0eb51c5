"""N-gram frequency tables: how often each token followed each context of a text.

One hash table holds two kinds of cells. A context's cell holds its most frequent continuation, the counts of
that one and of all, and the head of the list of its continuations. A continuation's cell holds its token, its
count and the next cell of the list. Keys are 64-bit hashes of the tokens with a random seed per process. They
are not compared with the tokens: a collision makes draft tokens worse and has no other effect.
"""

from __future__ import annotations

import numpy as np

from forerun.core.jit import compiled
from forerun.drafters.context_hash import UInt64Array, extend_hash
from forerun.drafters.match_tree import UNSEEN_VOTES, UNSEEN_VOTES_PER_CANDIDATE, vote_weight
from forerun.drafters.matches import Ints
from forerun.drafters.rebuildable import SEED, Rebuildable, make_hash_table
from forerun.types import Float32Array, IntArray

MAX_CANDIDATES = 256
"""Maximum number of continuations of one context to sample from."""

_BEST, _BEST_COUNT, _TOTAL, _LIST = 0, 1, 2, 3
_TOKEN, _COUNT, _NEXT = 0, 1, 2
_LENGTH, _USED, _SEED = 0, 1, 2
_CONTEXT, _CONTINUATION = np.uint64(0x8CB92BA72F3D8DD7), np.uint64(0xAAAAAAAAAAAAAAAB)
_ONE = np.uint64(1)


class NgramCounts(Rebuildable):
    """N-gram counts of a text. `order` is the length of the longest n-gram: contexts have 1 to `order` - 1
    tokens.
    """

    __slots__ = ("cells", "counters", "keys", "order", "tokens")

    def __init__(self, order: int, capacity: int, max_tokens: int) -> None:
        self.order = order
        super().__init__(capacity, max_tokens)

    @property
    def text(self) -> Ints:
        """The counted tokens, without a copy."""
        return self.tokens[: self.counters[_LENGTH]]

    @property
    def capacity(self) -> int:
        """Number of tokens that fit."""
        return len(self.tokens)

    @property
    def num_slots(self) -> int:
        """Number of cells."""
        return len(self.keys)

    def _append(self, tokens: Ints) -> int:
        return append_tokens(self.tokens, self.keys, self.cells, self.counters, tokens, self.order)

    def _allocate(self, capacity: int, num_slots: int) -> None:
        self.tokens: Ints = np.zeros(capacity, dtype=np.int32)
        self.keys: UInt64Array = make_hash_table(max(num_slots, 4 * capacity))
        self.cells: Ints = np.zeros((len(self.keys), 4), dtype=np.int32)
        self.counters: IntArray = np.array([0, 0, SEED])

    def continuations(self, context: Ints) -> tuple[IntArray, IntArray]:
        """Continuations of the longest known suffix of a context and their counts, limited to the
        `MAX_CANDIDATES` added last.
        """
        tokens, counts = np.empty((2, MAX_CANDIDATES), dtype=np.int64)
        tail = np.ascontiguousarray(context[: -self.order : -1])
        num = enumerate_continuations(self.keys, self.cells, self.counters, tail, tokens, counts)
        return tokens[:num], counts[:num]


@compiled
def append_tokens(
    text: Ints, keys: UInt64Array, cells: Ints, counters: IntArray, tokens: Ints, order: int
) -> int:
    """Append tokens and count them at every order; returns how many fitted."""
    max_used = keys.size * 3 // 4 - 2 * order
    for i in range(tokens.size):
        position = counters[_LENGTH]
        if position == text.size or counters[_USED] > max_used:
            return i
        text[position] = tokens[i]
        counters[_LENGTH] += 1
        key = np.uint64(counters[_SEED])
        for length in range(1, min(order - 1, position) + 1):
            key = extend_hash(key, text[position - length])
            context = _find_or_add_cell(keys, counters, key ^ _CONTEXT)
            _count_continuation(
                keys, cells, counters, context, extend_hash(key ^ _CONTINUATION, tokens[i]), tokens[i]
            )
    return tokens.size


@compiled
def _count_continuation(
    keys: UInt64Array, cells: Ints, counters: IntArray, context: int, key: np.uint64, token: int
) -> None:
    """Count one continuation of a context; the most recent of equally frequent ones becomes the best."""
    at = _find_or_add_cell(keys, counters, key)
    if cells[at, _COUNT] == 0:
        cells[at, _TOKEN], cells[at, _NEXT] = token, cells[context, _LIST]
        cells[context, _LIST] = at + 1
    cells[at, _COUNT] += 1
    cells[context, _TOTAL] += 1
    if cells[at, _COUNT] >= cells[context, _BEST_COUNT]:
        cells[context, _BEST], cells[context, _BEST_COUNT] = token, cells[at, _COUNT]


@compiled
def _find_or_add_cell(keys: UInt64Array, counters: IntArray, key: np.uint64) -> int:
    """Cell of a key; a new cell is all zeros."""
    at = _find_slot(keys, key)
    if keys[at] != key:
        keys[at] = key
        counters[_USED] += 1
    return at


@compiled
def _find_slot(keys: UInt64Array, key: np.uint64) -> int:
    """Slot of a key, or the free slot where it belongs."""
    mask = np.uint64(keys.size - 1)
    slot = key & mask
    while keys[slot] and keys[slot] != key:
        slot = (slot + _ONE) & mask
    return int(np.int64(slot))


@compiled
def _longest_context(keys: UInt64Array, counters: IntArray, tail: Ints, num: int) -> tuple[int, int]:
    """Length and cell of the longest known context of a tail, newest token first.

    A context is known only if its shorter suffixes are, so the search stops at the first unknown length.
    """
    key, cell = np.uint64(counters[_SEED]), 0
    for length in range(1, num + 1):
        key = extend_hash(key, tail[length - 1])
        at = _find_slot(keys, key ^ _CONTEXT)
        if keys[at] != key ^ _CONTEXT:
            return length - 1, cell
        cell = at
    return num, cell


@compiled
def predict(
    text: Ints,
    keys: UInt64Array,
    cells: Ints,
    counters: IntArray,
    order: int,
    tokens: IntArray,
    survival: Float32Array,
) -> int:
    """Write the most frequent continuation of the longest known context, then the next, and so on, with
    their survival.

    Returns the number of draft tokens, at most the length of `tokens`.
    """
    num = min(order - 1, counters[_LENGTH])
    tail = np.empty(order, dtype=np.int32)
    for i in range(num):
        tail[i] = text[counters[_LENGTH] - 1 - i]
    path_probability = 1.0
    for row in range(tokens.size):
        length, cell = _longest_context(keys, counters, tail, num)
        if not length:
            return row
        tokens[row] = cells[cell, _BEST]
        votes = vote_weight(length, length, 1, 0, False)
        count, total = cells[cell, _BEST_COUNT], cells[cell, _TOTAL]
        path_probability *= votes * count / (UNSEEN_VOTES + UNSEEN_VOTES_PER_CANDIDATE + votes * total)
        survival[row] = path_probability
        for i in range(order - 1, 0, -1):
            tail[i] = tail[i - 1]
        tail[0] = tokens[row]
        num = min(num + 1, order - 1)
    return tokens.size


@compiled
def enumerate_continuations(
    keys: UInt64Array, cells: Ints, counters: IntArray, tail: Ints, tokens: IntArray, counts: IntArray
) -> int:
    """List the continuations of the longest known suffix of a context, newest first; returns their number."""
    length, cell = _longest_context(keys, counters, tail, tail.size)
    if not length:
        return 0
    at, num = cells[cell, _LIST], 0
    while at and num < tokens.size:
        tokens[num], counts[num] = cells[at - 1, _TOKEN], cells[at - 1, _COUNT]
        at = cells[at - 1, _NEXT]
        num += 1
    return num
