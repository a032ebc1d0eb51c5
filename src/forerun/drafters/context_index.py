"""Index of earlier occurrences of the contexts of a growing text.

A context is the last 1, 2, 4, ... 32 tokens up to a position; each of these lengths is a level. For every
position and level the index holds the previous position with the same context, so that the occurrences of a
context form a linked list from newest to oldest. Appending a token finds these positions anyway, so looking
up the current context needs no search.

A context enters the next level only at its second occurrence. Until then its single occurrence is found
through the level below. Text that does not repeat therefore takes two or three table entries per token
instead of six.

Positions are found by a hash of the context and compared with it token by token. Results therefore do not
depend on the hash, and hash collisions cannot be exploited.
"""

from __future__ import annotations

import numpy as np

from forerun.core.jit import compiled
from forerun.drafters.context_hash import UInt64Array, extend_hash
from forerun.drafters.matches import BREAK, MAX_MATCH, Ints
from forerun.drafters.rebuildable import SEED, Rebuildable, make_hash_table
from forerun.types import IntArray

NUM_LEVELS = MAX_MATCH.bit_length()
NUM_FREQUENT = 16
"""Number of most frequent tokens kept as candidates for unseen contexts."""

NO_POSITION = -1
_COUNT_ROW, TEXT_ROW = NUM_LEVELS, NUM_LEVELS + 1
_NUM_ROWS = NUM_LEVELS + 2

LENGTH, _RUN_LENGTH, USED_SLOTS, HASH_SEED, NUM_RANKED, FREQUENT = 0, 1, 2, 3, 4, 5
"""Entries of `counters`: tokens, tokens since the last `BREAK`, used slots of the hash table, the hash seed,
and the most frequent tokens: their number, then count and latest position of each."""

# A slot of the hash table: 29 bits of the key, the level, and the position plus one.
_POSITION_MASK, _KEY_MASK = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFF800000000)
_LEVEL_SHIFT = np.uint64(32)
_ONE = np.uint64(1)


class ContextIndex(Rebuildable):
    """A text and the index of its contexts.

    `BREAK` separates two texts: no context and no match crosses it. `token_table` has one column per token;
    its rows are the linked list of each level, the number of occurrences of the token so far, and the text.
    `hash_table` maps each context to its latest position. `counters` holds the scalar state.
    """

    __slots__ = ("counters", "hash_table", "token_table")

    def __init__(self, capacity: int = 256, max_tokens: int = 1 << 20) -> None:
        super().__init__(capacity, max_tokens)

    @property
    def text(self) -> Ints:
        """The indexed tokens, without a copy."""
        return self.token_table[TEXT_ROW, : self.counters[LENGTH]]

    @property
    def capacity(self) -> int:
        """Number of tokens that fit."""
        return int(self.token_table.shape[1])

    @property
    def num_slots(self) -> int:
        """Slots of the hash table."""
        return len(self.hash_table)

    def _append(self, tokens: Ints) -> int:
        return append_tokens(self.token_table, self.hash_table, self.counters, tokens)

    def _allocate(self, capacity: int, num_slots: int) -> None:
        self.token_table: Ints = np.zeros((_NUM_ROWS, capacity), dtype=np.int32)
        self.hash_table: UInt64Array = make_hash_table(max(num_slots, 2 * capacity))
        self.counters: IntArray = np.zeros(FREQUENT + 2 * NUM_FREQUENT, dtype=np.int64)
        self.counters[HASH_SEED] = SEED


@compiled
def append_tokens(token_table: Ints, hash_table: UInt64Array, counters: IntArray, tokens: Ints) -> int:
    """Append tokens until capacity runs out; returns how many were appended."""
    max_used = hash_table.size * 3 // 4 - 2 * NUM_LEVELS
    for i in range(tokens.size):
        position = counters[LENGTH]
        if position == token_table.shape[1] or counters[USED_SLOTS] > max_used:
            return i
        counters[LENGTH] += 1
        token_table[TEXT_ROW, position] = tokens[i]
        for level in range(NUM_LEVELS):
            token_table[level, position] = NO_POSITION
        if tokens[i] == BREAK:
            counters[_RUN_LENGTH] = 0
        else:
            counters[_RUN_LENGTH] += 1
            _index_position(token_table, hash_table, counters, position)
            _count_token(token_table, counters, position)
    return tokens.size


@compiled
def _index_position(token_table: Ints, hash_table: UInt64Array, counters: IntArray, position: int) -> None:
    """Insert a position on every level up to the first where its context is new."""
    text = token_table[TEXT_ROW]
    key, num_hashed = np.uint64(counters[HASH_SEED]), 0
    for level in range(NUM_LEVELS):
        if 1 << level > counters[_RUN_LENGTH]:
            return
        while num_hashed < 1 << level:
            key = extend_hash(key, text[position - num_hashed])
            num_hashed += 1
        previous = _insert(text, hash_table, counters, key, level, position)
        token_table[level, position] = previous
        if previous == NO_POSITION:
            return
        if token_table[level, previous] == NO_POSITION and level + 1 < NUM_LEVELS:
            _promote(text, hash_table, counters, previous, level + 1)


@compiled
def _promote(text: Ints, hash_table: UInt64Array, counters: IntArray, previous: int, level: int) -> None:
    """Insert an earlier position one level higher, now that its context occurred twice."""
    key = np.uint64(counters[HASH_SEED])
    for i in range(1 << level):
        if i > previous or text[previous - i] == BREAK:
            return
        key = extend_hash(key, text[previous - i])
    _insert(text, hash_table, counters, key, level, previous)


@compiled
def _insert(
    text: Ints, hash_table: UInt64Array, counters: IntArray, key: np.uint64, level: int, position: int
) -> int:
    """Make `position` the latest of its context; returns the previous one, or NO_POSITION."""
    mask = np.uint64(hash_table.size - 1)
    slot = key & mask
    wanted = (key & _KEY_MASK) | (np.uint64(level) << _LEVEL_SHIFT)
    while hash_table[slot]:
        if (hash_table[slot] ^ wanted) & ~_POSITION_MASK == 0:
            previous = int(np.int64(hash_table[slot] & _POSITION_MASK)) - 1
            if _same_context(text, previous, position, 1 << level):
                hash_table[slot] = wanted | np.uint64(position + 1)
                return previous
        slot = (slot + _ONE) & mask
    hash_table[slot] = wanted | np.uint64(position + 1)
    counters[USED_SLOTS] += 1
    return NO_POSITION


@compiled
def _same_context(text: Ints, previous: int, position: int, length: int) -> bool:
    """Whether two positions share their last `length` tokens."""
    match = 0
    while match < length and text[previous - match] == text[position - match]:
        match += 1
    return match == length


@compiled
def find_latest(text: Ints, hash_table: UInt64Array, key: np.uint64, level: int, tail: Ints) -> int:
    """Latest position of a context given newest token first, or NO_POSITION."""
    mask = np.uint64(hash_table.size - 1)
    slot = key & mask
    wanted = (key & _KEY_MASK) | (np.uint64(level) << _LEVEL_SHIFT)
    while hash_table[slot]:
        if (hash_table[slot] ^ wanted) & ~_POSITION_MASK == 0:
            previous = int(np.int64(hash_table[slot] & _POSITION_MASK)) - 1
            if match_length(text, previous, tail) >= 1 << level:
                return previous
        slot = (slot + _ONE) & mask
    return NO_POSITION


@compiled
def match_length(text: Ints, previous: int, tail: Ints) -> int:
    """Number of tokens that the context of a position shares with a tail, newest first."""
    match = 0
    while match < MAX_MATCH and match <= previous and text[previous - match] == tail[match]:
        match += 1
    return match


@compiled
def _count_token(token_table: Ints, counters: IntArray, position: int) -> None:
    """Update the most frequent tokens; the least recent of equals is replaced first."""
    last_position = token_table[0, position]
    count = 1 if last_position == NO_POSITION else token_table[_COUNT_ROW, last_position] + 1
    token_table[_COUNT_ROW, position] = count
    least_frequent = 0
    num = counters[NUM_RANKED]
    frequent = counters[FREQUENT:]
    for i in range(num):
        if frequent[2 * i + 1] == last_position and last_position != NO_POSITION:
            frequent[2 * i], frequent[2 * i + 1] = count, position
            return
        if (frequent[2 * i], frequent[2 * i + 1]) < (
            frequent[2 * least_frequent],
            frequent[2 * least_frequent + 1],
        ):
            least_frequent = i
    if num < NUM_FREQUENT:
        least_frequent = num
        counters[NUM_RANKED] += 1
    elif count < frequent[2 * least_frequent]:
        return
    frequent[2 * least_frequent], frequent[2 * least_frequent + 1] = count, position
