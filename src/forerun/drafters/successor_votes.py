"""Votes of the target's own likeliest next tokens for the children of a node.

Three sources vote beside the matches: rows recycled for the last two tokens and for the last one, the static
table for the last one, and the last logits. These are the runners-up of the row that the last token came
from, which often follow one or two tokens later (LogitSpec, Liu et al. 2025).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from forerun.core.jit import compiled, inlined
from forerun.drafters.matches import Ints
from forerun.drafters.recycled_logits import NO_ROW, RecycledArrays, find_pair, find_token
from forerun.drafters.successors import CODED_PROBS, NUM_SUCCESSORS, ByteArray
from forerun.drafters.tree_workspace import CANDIDATE_SIZE, CANDIDATE_TOKEN, CANDIDATE_VOTES
from forerun.types import FloatArray, IntArray

SuccessorArrays: TypeAlias = tuple[RecycledArrays, Ints, ByteArray, FloatArray, FloatArray]
"""Recycled rows, the static table's successors and codes, and the two arrays of `VoteWeights`, as compiled
functions take them. A source that is not used has no rows, or no weight.
"""

_PAIR, _TOKEN, _LAST_LOGITS = 0, 1, 2
"""Rows of the votes by code."""

_PAIR_TOTAL, _TOKEN_TOTAL, _BESIDE_PAIR, _STATIC, _LAST_TOTALS, _MEDIUM_MATCH, _LONG_MATCH = (
    0,
    1,
    2,
    3,
    4,
    6,
    7,
)
"""Entries of the weights."""

MEDIUM_MATCH: Final = 2
LONG_MATCH: Final = 5
"""Lengths of the longest match from which the votes of successors have another weight."""

LAST_LOGITS_DEPTH: Final = 2
"""Levels of the tree for which the last logits vote."""


@dataclass(frozen=True, slots=True)
class VoteWeights:
    """The votes of a row of successors: amount times probability to a power.

    The amount includes votes for unseen tokens. The defaults were fitted on replayed transcripts
    (docs/lab-notes.md).

    Attributes:
        pair, pair_power: Of a row recycled for the last two tokens; with a `pair` of 0 no recycled row votes.
        token, token_power: Of a row for the last token.
        beside_pair: Factor of a row for the last token if there is one for the last two.
        static: Factor of a row of the static table.
        last_logits, last_logits_power: Of the last logits, by depth; probabilities are relative to the tokens
            that were not taken.
        medium_match, long_match: Factor of all rows beside a match of at least `MEDIUM_MATCH` and
            `LONG_MATCH` tokens.
    """

    pair: float = 1.4
    pair_power: float = 0.3
    token: float = 2.0
    token_power: float = 0.5
    beside_pair: float = 0.7
    static: float = 0.6
    last_logits: tuple[float, float] = (1.0, 0.3)
    last_logits_power: float = 1.0
    medium_match: float = 0.35
    long_match: float = 0.28

    @classmethod
    def of_sources(cls, *, recycled: bool = True, last_logits: bool = True) -> VoteWeights:
        """The default weights, with no votes from the sources that are not used."""
        weights = cls()
        if not recycled:
            weights = replace(weights, pair=0.0)
        return weights if last_logits else replace(weights, last_logits=(0.0, 0.0))

    @property
    def arrays(self) -> tuple[FloatArray, FloatArray]:
        """The votes by source and code, and the other weights."""
        powers = (self.pair_power, self.token_power, self.last_logits_power)
        amounts = (self.pair, self.token, 1.0)
        by_code = np.array(amounts)[:, None] * CODED_PROBS ** np.array(powers)[:, None]
        weights = (
            self.pair,
            self.token,
            self.beside_pair,
            self.static,
            *self.last_logits,
            self.medium_match,
            self.long_match,
        )
        return by_code, np.array(weights)


@inlined
def add_successor_votes(
    sources: SuccessorArrays,
    tail: Ints,
    context: tuple[int, int],
    level: int,
    longest: int,
    counted: tuple[int, float],
    ints: IntArray,
    floats: FloatArray,
) -> tuple[int, float]:
    """Add the votes for the successors of the last two tokens of a node's context to those of the matches.

    `counted` has the number of candidates and the sum of all votes; returns both. `longest` is the length of
    the longest match at this level.
    """
    (previous, last), (found, total) = context, counted
    recycled, static_successors, static_codes, by_code, weights = sources
    _, successors, codes, _, _ = recycled
    weight = 1.0
    if longest >= MEDIUM_MATCH:
        weight = weights[_LONG_MATCH if longest >= LONG_MATCH else _MEDIUM_MATCH]
    token_weight = weight
    row = find_pair(recycled, previous, last) if weights[_PAIR_TOTAL] > 0.0 else NO_ROW
    if row != NO_ROW:
        total += weight * weights[_PAIR_TOTAL]
        found = _add_row(successors, codes, (row, _PAIR), by_code, weight, found, ints, floats)
        token_weight *= weights[_BESIDE_PAIR]
    row = find_token(recycled, last) if weights[_PAIR_TOTAL] > 0.0 else NO_ROW
    if row != NO_ROW:
        total += token_weight * weights[_TOKEN_TOTAL]
        found = _add_row(successors, codes, (row, _TOKEN), by_code, token_weight, found, ints, floats)
    elif 0 <= last < len(static_successors) and static_successors[last, 0] >= 0:
        token_weight *= weights[_STATIC]
        total += token_weight * weights[_TOKEN_TOTAL]
        found = _add_row(
            static_successors, static_codes, (last, _TOKEN), by_code, token_weight, found, ints, floats
        )
    if level < LAST_LOGITS_DEPTH and weights[_LAST_TOTALS + level] > 0.0:
        row = find_pair(recycled, tail[2], tail[1])
        if row != NO_ROW:
            weight *= weights[_LAST_TOTALS + level]
            total += weight
            found = _add_last_logits(successors, codes, (row, tail[0]), by_code, weight, found, ints, floats)
    return found, total


@compiled
def _add_row(
    successors: Ints,
    codes: ByteArray,
    at: tuple[int, int],
    by_code: FloatArray,
    weight: float,
    found: int,
    ints: IntArray,
    floats: FloatArray,
) -> int:
    """Add the votes of a row; returns the number of candidates. `at` has the row, and that of `by_code`."""
    row, kind = at  # slices of the arrays would cost more than the votes
    for i in range(NUM_SUCCESSORS):
        found = _vote(successors[row, i], weight * by_code[kind, codes[row, i]], found, ints, floats)
    return found


@compiled
def _add_last_logits(
    successors: Ints,
    codes: ByteArray,
    at: tuple[int, int],
    by_code: FloatArray,
    weight: float,
    found: int,
    ints: IntArray,
    floats: FloatArray,
) -> int:
    """Add the votes of the last logits without the token that was taken; returns the number of candidates."""
    row, taken = at
    left = 0.0
    for i in range(NUM_SUCCESSORS):
        if successors[row, i] != taken:
            left += CODED_PROBS[codes[row, i]]
    shift = np.int64(np.rint(8.0 * np.log2(max(left, 0.02))))
    for i in range(NUM_SUCCESSORS):
        if successors[row, i] != taken:
            code = max(0, codes[row, i] + shift)
            found = _vote(successors[row, i], weight * by_code[_LAST_LOGITS, code], found, ints, floats)
    return found


@compiled
def _vote(token: int, votes: float, found: int, ints: IntArray, floats: FloatArray) -> int:
    """Add votes for a token, as a new candidate without matches if need be; returns their number."""
    c = 0
    while c < found and ints[CANDIDATE_TOKEN, c] != token:
        c += 1
    if c == found:
        if found == ints.shape[1]:
            return found
        ints[CANDIDATE_TOKEN, c], ints[CANDIDATE_SIZE, c], floats[CANDIDATE_VOTES, c] = token, 0, 0.0
        found += 1
    floats[CANDIDATE_VOTES, c] += votes
    return found
