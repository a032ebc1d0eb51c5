"""Lookups in a corpus: a binary search for the current context among the sorted positions."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from forerun.core.jit import compiled
from forerun.drafters.matches import (
    BREAK,
    CONTINUATION,
    CORPUS,
    COUNT,
    MATCH_LENGTH,
    MAX_MATCH,
    POSITION,
    SOURCE,
    Ints,
)

STRIDE: Final = 64
"""Positions per row of the guide."""

GUIDE_TOKENS: Final = 8
"""Tokens of context per row of the guide."""

PositionArray: TypeAlias = npt.NDArray[np.uint32]
ByteArray: TypeAlias = npt.NDArray[np.uint8]
TokenArray: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]


@compiled
def look_up_corpus(
    text: TokenArray,
    positions: PositionArray,
    common: ByteArray,
    guide: TokenArray,
    outline: TokenArray,
    tail: Ints,
    matches: Ints,
    depth: int,
) -> int:
    """Write the positions with the longest matches of the tail; returns their number."""
    above, match_above, match_below = _search(text, positions, guide, outline, tail)
    below = above - 1
    num = 0
    while num < matches.shape[0] and (match_below or match_above):
        if match_above >= match_below:
            matches[num, MATCH_LENGTH], matches[num, POSITION] = match_above, positions[above]
            above += 1
            match_above = min(match_above, common[above]) if above < positions.size else 0
        else:
            matches[num, MATCH_LENGTH], matches[num, POSITION] = match_below, positions[below]
            match_below = min(match_below, common[below]) if below else 0
            below -= 1
        num += 1
    for row in range(num):  # first tokens first, so that their cache misses overlap
        start = int(matches[row, POSITION]) + 1
        matches[row, CONTINUATION] = token_at(text, start) if 0 < start < text.size else BREAK
    for row in range(num):
        _copy_continuation(text, matches, row, depth)
    return num


@compiled
def _search(
    text: TokenArray, positions: PositionArray, guide: TokenArray, outline: TokenArray, tail: Ints
) -> tuple[int, int, int]:
    """Index at which the tail sorts among the positions, and the context that it shares with that position
    and with the one before.
    """
    row = _last_before(text, positions, outline, tail, 0, outline.shape[0], STRIDE * STRIDE) * STRIDE
    row = _last_before(text, positions, guide, tail, row, min(row + STRIDE, guide.shape[0]), STRIDE)
    first, last = row * STRIDE, min((row + 1) * STRIDE, positions.size)
    before, match = _compare(text, positions, guide, row, tail, STRIDE)
    if not before:
        return first, match, 0
    match_after = -1
    while last - first > 1:
        middle = (first + last) // 2
        shared = shared_context(text, positions[middle], tail)
        if _before(text, positions[middle], shared, tail):
            first, match = middle, shared
        else:
            last, match_after = middle, shared
    if match_after < 0:
        match_after = shared_context(text, positions[last], tail) if last < positions.size else 0
    return last, match_after, match


@compiled
def _last_before(
    text: TokenArray,
    positions: PositionArray,
    guide: TokenArray,
    tail: Ints,
    first: int,
    last: int,
    stride: int,
) -> int:
    """Last row of the guide whose context sorts before the tail; the first row if there is none."""
    while last - first > 1:
        middle = (first + last) // 2
        before, _ = _compare(text, positions, guide, middle, tail, stride)
        if before:
            first = middle
        else:
            last = middle
    return first


@compiled
def _compare(
    text: TokenArray, positions: PositionArray, guide: TokenArray, row: int, tail: Ints, stride: int
) -> tuple[bool, int]:
    """Whether the position of a guide row sorts before the tail, and the context that they share. Usually the
    guide row suffices.
    """
    match = 0
    while match < GUIDE_TOKENS and int(guide[row, match]) - 1 == tail[match]:
        match += 1
    if match < GUIDE_TOKENS:
        return int(guide[row, match]) - 1 < tail[match], match
    position = positions[row * stride]
    match = shared_context(text, position, tail)
    return _before(text, position, match, tail), match


@compiled
def _before(text: TokenArray, position: int, match: int, tail: Ints) -> bool:
    """Whether a context that shares `match` tokens with the tail sorts before it."""
    return match < MAX_MATCH and (
        not match <= position < text.size or token_at(text, position - match) < tail[match]
    )


@compiled
def shared_context(text: TokenArray, position: int, tail: Ints) -> int:
    """Number of tokens of context that a position shares with the tail; 0 for an invalid position."""
    match = 0
    while (
        match < MAX_MATCH
        and match <= position < text.size
        and token_at(text, position - match) == tail[match]
    ):
        match += 1
    return match


@compiled
def token_at(text: TokenArray, position: int) -> int:
    """Token at a position; `BREAK` between two documents."""
    return int(text[position]) - 1


@compiled
def _copy_continuation(text: TokenArray, matches: Ints, row: int, depth: int) -> None:
    """Copy the tokens that follow a position, up to the end of its document."""
    matches[row, SOURCE], matches[row, COUNT] = CORPUS, 1
    start = int(matches[row, POSITION]) + 1
    ended = bool(matches[row, CONTINUATION] == BREAK)
    for i in range(1, depth):
        token = BREAK if ended or start + i >= text.size else token_at(text, start + i)
        ended = token == BREAK
        matches[row, CONTINUATION + i] = token
