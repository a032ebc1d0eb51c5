"""Draft trees grown from matches, most likely nodes first.

Every match votes for the token that followed it, with a weight that grows with the match length. A constant
number of votes, plus some per candidate, goes to unseen tokens. A node's probability is its share of the
votes, its survival the product of probabilities from the root. The tree adds the node with the highest
survival until the budget is used. Below a node, only matches that agree with its path vote, and their match
length grows by one per level.

The constants in `vote_weight` were fitted on replayed transcripts (docs/lab-notes.md). They rank the nodes;
`control` calibrates the probabilities.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from forerun.core.jit import compiled, inlined
from forerun.drafters.matches import BREAK, CONTINUATION, COUNT, MATCH_LENGTH, OWN, SOURCE, Ints
from forerun.types import ROOT, Float32Array, FloatArray, IntArray

TOKENS, PARENTS = 0, 1
"""Rows of the tree under construction."""

# Rows of `ints`: per match,
_ORDER, _SPARE, _CHOICE = 0, 1, 2
# per candidate below one node,
_TOKEN, _SIZE, _END = 3, 4, 5
# per node taken or in the frontier, and the nodes ranked by survival.
_NODE_TOKEN, _PARENT, _DEPTH, _FIRST, _LAST, _RANK = 6, 7, 8, 9, 10, 11
# Rows of `floats`: per candidate, per rank.
_VOTES, _SURVIVAL = 0, 1

UNSEEN_VOTES: Final = 1.0
UNSEEN_VOTES_PER_CANDIDATE: Final = 0.4
"""Votes for unseen tokens: a constant, and an amount per candidate."""

_LENGTH_DISCOUNT: Final = 0.7 ** np.arange(11)
"""Weight of a match by how many tokens it is shorter than the longest."""


class Workspace:
    """Reusable arrays for growing trees; allocation would slow the compiled functions down."""

    __slots__ = ("floats", "ints")

    def __init__(self, width: int) -> None:
        self.ints = np.empty((_RANK + 1, width), dtype=np.int64)
        self.floats = np.empty((_SURVIVAL + 1, width), dtype=np.float64)

    @property
    def width(self) -> int:
        """Maximum number of nodes, and of matches."""
        return self.ints.shape[1]


@compiled
def grow_tree(
    matches: Ints,
    num: int,
    chain: bool,
    nodes: IntArray,
    survival: Float32Array,
    ints: IntArray,
    floats: FloatArray,
) -> int:
    """Write tokens, parents and survival of the most likely tree, up to the columns of `nodes`; returns the
    number of nodes.

    Nodes are taken in order of survival, so the first k of them are the best tree of k nodes. A chain keeps
    only the best child of each node. The ranking lists the nodes taken, then the frontier. It is as long as
    the budget; nodes ranked beyond it are dropped.
    """
    limits = (nodes.shape[1], min(nodes.shape[1], matches.shape[1] - CONTINUATION))
    _sort_by_match(matches, num, ints)
    node, filled = ROOT, 0
    while node + 1 < nodes.shape[1]:
        filled = _expand(matches, num, limits, node, filled, chain, ints, floats)
        if node + 1 == filled:
            break
        node += 1
    for taken in range(node + 1):
        at = ints[_RANK, taken]
        nodes[TOKENS, taken], nodes[PARENTS, taken] = ints[_NODE_TOKEN, at], ints[_PARENT, at]
        survival[taken] = floats[_SURVIVAL, taken]
    return node + 1


@inlined
def _expand(
    matches: Ints,
    num: int,
    limits: tuple[int, int],
    node: int,
    filled: int,
    chain: bool,
    ints: IntArray,
    floats: FloatArray,
) -> int:
    """Rank the children of a node within budget and depth; returns the new length of the ranking."""
    budget, depth = limits
    level, first, last, survival = 0, 0, num, 1.0
    if node != ROOT:
        at = ints[_RANK, node]
        level, first, last = ints[_DEPTH, at], ints[_FIRST, at], ints[_LAST, at]
        survival = floats[_SURVIVAL, node]
    if level == depth:
        return filled
    found, total = _count_votes(matches, first, last, level, ints, floats)
    best = _group_by_candidate(first, last, found, ints, floats)
    for c in range(found):
        if chain and c != best:
            continue
        probability = floats[_VOTES, c] / total
        at, filled = _rank_node(survival * probability, node + 1, filled, budget, ints, floats)
        if at >= 0:
            ints[_NODE_TOKEN, at], ints[_PARENT, at], ints[_DEPTH, at] = ints[_TOKEN, c], node, level + 1
            ints[_FIRST, at], ints[_LAST, at] = ints[_END, c] - ints[_SIZE, c], ints[_END, c]
    return filled


@compiled
def _sort_by_match(matches: Ints, num: int, ints: IntArray) -> None:
    """Sort matches by length, longest first, stably."""
    for i in range(num):
        at = i
        while at and matches[ints[_ORDER, at - 1], MATCH_LENGTH] < matches[i, MATCH_LENGTH]:
            ints[_ORDER, at] = ints[_ORDER, at - 1]
            at -= 1
        ints[_ORDER, at] = i


@compiled
def _count_votes(
    matches: Ints, first: int, last: int, level: int, ints: IntArray, floats: FloatArray
) -> tuple[int, float]:
    """Count the votes of matches `first` to `last` for the token at a level.

    Returns the number of candidates and the sum of all votes, those for unseen tokens included.
    """
    found, total, voted_sources = 0, UNSEEN_VOTES, 0
    longest = matches[ints[_ORDER, first], MATCH_LENGTH] + level if first < last else 0
    for i in range(first, last):
        at = ints[_ORDER, i]
        token, match = matches[at, CONTINUATION + level], matches[at, MATCH_LENGTH] + level
        ints[_CHOICE, i] = BREAK
        if token == BREAK:
            continue
        source = 1 << matches[at, SOURCE]
        votes = vote_weight(
            match, longest, matches[at, COUNT], matches[at, SOURCE], voted_sources & source == 0
        )
        voted_sources |= source
        c = 0
        while c < found and ints[_TOKEN, c] != token:
            c += 1
        if c == found:
            ints[_TOKEN, c], ints[_SIZE, c], floats[_VOTES, c] = token, 0, 0.0
            found += 1
        ints[_SIZE, c] += 1
        ints[_CHOICE, i] = c
        floats[_VOTES, c] += votes
        total += votes
    return found, total + UNSEEN_VOTES_PER_CANDIDATE * found


@compiled
def vote_weight(match: int, longest: int, count: int, source: int, first: bool) -> float:
    """Votes of a match: by its length, or by frequency in the text if nothing matches."""
    if match == 0:
        return count / 64.0
    votes = 0.4 * min(match, 16) * _LENGTH_DISCOUNT[min(longest - match, 10)]
    if source != OWN:
        votes *= 0.25
    return float(2.0 * votes if first else votes)


@compiled
def _group_by_candidate(first: int, last: int, found: int, ints: IntArray, floats: FloatArray) -> int:
    """Group the matches by candidate; returns the candidate with the most votes."""
    best, end = 0, first
    for c in range(found):
        ints[_END, c] = end
        end += ints[_SIZE, c]
        if floats[_VOTES, c] > floats[_VOTES, best]:
            best = c
    for i in range(first, last):
        c = ints[_CHOICE, i]
        if c != BREAK:
            ints[_SPARE, ints[_END, c]] = ints[_ORDER, i]
            ints[_END, c] += 1
    for i in range(first, end):
        ints[_ORDER, i] = ints[_SPARE, i]
    return best


@compiled
def _rank_node(
    survival: float, taken: int, filled: int, budget: int, ints: IntArray, floats: FloatArray
) -> tuple[int, int]:
    """Rank a new node by its survival; returns its slot, or -1 if it is dropped, and the length of the
    ranking.
    """
    if filled < budget:
        slot = filled
        filled += 1
    elif filled > taken and floats[_SURVIVAL, filled - 1] < survival:
        slot = ints[_RANK, filled - 1]
    else:
        return -1, filled
    at = filled - 1
    while at > taken and floats[_SURVIVAL, at - 1] < survival:
        ints[_RANK, at], floats[_SURVIVAL, at] = ints[_RANK, at - 1], floats[_SURVIVAL, at - 1]
        at -= 1
    ints[_RANK, at], floats[_SURVIVAL, at] = slot, survival
    return slot, filled
