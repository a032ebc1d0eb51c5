"""Lookups in a context index: the matches of the current context, as rows from which a tree is grown."""

from __future__ import annotations

import numpy as np

from forerun.core.jit import compiled
from forerun.drafters.context_hash import UInt64Array, extend_hash
from forerun.drafters.context_index import (
    FREQUENT,
    HASH_SEED,
    LENGTH,
    NO_POSITION,
    NUM_LEVELS,
    NUM_RANKED,
    TEXT_ROW,
    USED_SLOTS,
    append_tokens,
    find_latest,
    match_length,
)
from forerun.drafters.matches import (
    BREAK,
    CONTINUATION,
    COUNT,
    MATCH_LENGTH,
    MAX_MATCH,
    OWN,
    POSITION,
    SOURCE,
    Ints,
)
from forerun.types import IntArray

MAX_WALK = 32
"""Maximum number of occurrences visited per level, most recent first."""


@compiled
def append_and_look_up(
    token_table: Ints,
    hash_table: UInt64Array,
    counters: IntArray,
    tokens: Ints,
    tail: Ints,
    matches: Ints,
    depth: int,
    max_matches: int,
) -> int:
    """Append tokens and look up the current context in one call. Returns -1 without any change if capacity
    may not suffice.
    """
    if counters[LENGTH] + tokens.size > token_table.shape[1]:
        return -1
    if counters[USED_SLOTS] + 2 * NUM_LEVELS * (tokens.size + 1) > hash_table.size * 3 // 4:
        return -1
    append_tokens(token_table, hash_table, counters, tokens)
    return look_up_own(token_table, counters, tail, matches, depth, max_matches)


@compiled
def look_up_own(
    token_table: Ints, counters: IntArray, tail: Ints, matches: Ints, depth: int, max_matches: int
) -> int:
    """Write matches of the text's own last context, then its most frequent tokens.

    Also writes the last tokens, newest first, into `tail`, for lookups elsewhere. Returns the number of rows
    written. A continuation that reaches the end of the text restarts at its own first token, as in text
    that repeats itself.
    """
    text = token_table[TEXT_ROW]
    length = counters[LENGTH]
    for i in range(MAX_MATCH):
        tail[i] = text[length - 1 - i] if i < length else BREAK - 1
    if not length:
        return 0
    latest = np.empty(NUM_LEVELS, dtype=np.int32)
    for level in range(NUM_LEVELS):
        latest[level] = token_table[level, length - 1]
    num = _collect_matches(token_table, latest, tail, matches[:max_matches])
    frequent = counters[FREQUENT:]
    for i in range(counters[NUM_RANKED]):
        if frequent[2 * i] > 1 and num < matches.shape[0]:
            matches[num, MATCH_LENGTH], matches[num, COUNT] = 0, frequent[2 * i]
            matches[num, POSITION] = frequent[2 * i + 1] - 1
            num += 1
    for row in range(num):
        matches[row, SOURCE] = OWN
        start = cursor = int(matches[row, POSITION]) + 1
        for i in range(depth):
            matches[row, CONTINUATION + i] = text[cursor]
            cursor = cursor + 1 if cursor + 1 < length else start
    return num


@compiled
def look_up(
    token_table: Ints, hash_table: UInt64Array, counters: IntArray, tail: Ints, matches: Ints, depth: int
) -> int:
    """Write matches of another text's context in this text; returns their number."""
    text = token_table[TEXT_ROW]
    latest = np.full(NUM_LEVELS, NO_POSITION, dtype=np.int32)
    key, num_hashed = np.uint64(counters[HASH_SEED]), 0
    for level in range(NUM_LEVELS):
        while num_hashed < 1 << level:
            key = extend_hash(key, tail[num_hashed])
            num_hashed += 1
        latest[level] = find_latest(text, hash_table, key, level, tail)
        if latest[level] == NO_POSITION:
            break
    num = _collect_matches(token_table, latest, tail, matches)
    for row in range(num):
        start = int(matches[row, POSITION]) + 1
        ended = False
        for i in range(depth):
            ended = ended or start + i >= counters[LENGTH] or text[start + i] == BREAK
            matches[row, CONTINUATION + i] = BREAK if ended else text[start + i]
    return num


@compiled
def _collect_matches(token_table: Ints, latest: Ints, tail: Ints, matches: Ints) -> int:
    """Follow the linked lists from the highest level down, newest first, and write each match once.

    A match longer than its level belongs to a higher level, and was written there if that level has any.
    """
    text = token_table[TEXT_ROW]
    num, found_longer = 0, False
    for level in range(NUM_LEVELS - 1, -1, -1):
        previous = latest[level]
        for _ in range(MAX_WALK):
            if previous == NO_POSITION or num == matches.shape[0]:
                break
            match = match_length(text, previous, tail)
            if match and not (found_longer and match >= 2 << level):
                matches[num, MATCH_LENGTH], matches[num, COUNT], matches[num, POSITION] = match, 1, previous
                num += 1
            previous = token_table[level, previous]
        found_longer = found_longer or latest[level] != NO_POSITION
    return num
