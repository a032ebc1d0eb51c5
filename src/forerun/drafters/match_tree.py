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
from forerun.drafters.successor_votes import SuccessorArrays, add_successor_votes
from forerun.drafters.tree_workspace import (
    CANDIDATE_END,
    CANDIDATE_SIZE,
    CANDIDATE_TOKEN,
    CANDIDATE_VOTES,
    CHOICE,
    NODE_DEPTH,
    NODE_FIRST,
    NODE_LAST,
    NODE_PARENT,
    NODE_TOKEN,
    ORDER,
    RANK,
    SPARE,
    SURVIVAL,
)
from forerun.types import ROOT, Float32Array, FloatArray, IntArray

TOKENS, PARENTS = 0, 1
"""Rows of the tree under construction."""

UNSEEN_VOTES: Final = 1.0
UNSEEN_VOTES_PER_CANDIDATE: Final = 0.4
"""Votes for unseen tokens: a constant, and an amount per candidate."""

_LENGTH_DISCOUNT: Final = 0.7 ** np.arange(11)
"""Weight of a match by how many tokens it is shorter than the longest."""


@compiled
def grow_tree(
    matches: Ints,
    tail: Ints,
    sources: SuccessorArrays,
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
    context = (tail, sources)
    limits = (nodes.shape[1], min(nodes.shape[1], matches.shape[1] - CONTINUATION))
    _sort_by_match(matches, ints)
    node, filled = ROOT, 0
    while node + 1 < nodes.shape[1]:
        filled = _expand(matches, context, limits, node, filled, chain, ints, floats)
        if node + 1 == filled:
            break
        node += 1
    for taken in range(node + 1):
        at = ints[RANK, taken]
        nodes[TOKENS, taken], nodes[PARENTS, taken] = ints[NODE_TOKEN, at], ints[NODE_PARENT, at]
        survival[taken] = floats[SURVIVAL, taken]
    return node + 1


@inlined
def _expand(
    matches: Ints,
    context: tuple[Ints, SuccessorArrays],
    limits: tuple[int, int],
    node: int,
    filled: int,
    chain: bool,
    ints: IntArray,
    floats: FloatArray,
) -> int:
    """Rank the children of a node within budget and depth; returns the new length of the ranking."""
    budget, depth = limits
    tail, sources = context
    level, first, last, survival = 0, 0, len(matches), 1.0
    token, previous = tail[0], tail[1]
    if node != ROOT:
        at = ints[RANK, node]
        level, first, last = ints[NODE_DEPTH, at], ints[NODE_FIRST, at], ints[NODE_LAST, at]
        survival = floats[SURVIVAL, node]
        parent = ints[NODE_PARENT, at]
        token, previous = (
            ints[NODE_TOKEN, at],
            token if parent == ROOT else ints[NODE_TOKEN, ints[RANK, parent]],
        )
    if level == depth:
        return filled
    found, total, longest = _count_votes(matches, first, last, level, ints, floats)
    found, total = add_successor_votes(
        sources, tail, (previous, token), level, longest, (found, total), ints, floats
    )
    best = _group_by_candidate(first, last, found, ints, floats)
    for c in range(found):
        if chain and c != best:
            continue
        probability = floats[CANDIDATE_VOTES, c] / total
        at, filled = _rank_node(survival * probability, node + 1, filled, budget, ints, floats)
        if at >= 0:
            ints[NODE_TOKEN, at], ints[NODE_PARENT, at], ints[NODE_DEPTH, at] = (
                ints[CANDIDATE_TOKEN, c],
                node,
                level + 1,
            )
            ints[NODE_FIRST, at], ints[NODE_LAST, at] = (
                ints[CANDIDATE_END, c] - ints[CANDIDATE_SIZE, c],
                ints[CANDIDATE_END, c],
            )
    return filled


@compiled
def _sort_by_match(matches: Ints, ints: IntArray) -> None:
    """Sort matches by length, longest first, stably."""
    for i in range(len(matches)):
        at = i
        while at and matches[ints[ORDER, at - 1], MATCH_LENGTH] < matches[i, MATCH_LENGTH]:
            ints[ORDER, at] = ints[ORDER, at - 1]
            at -= 1
        ints[ORDER, at] = i


@compiled
def _count_votes(
    matches: Ints, first: int, last: int, level: int, ints: IntArray, floats: FloatArray
) -> tuple[int, float, int]:
    """Count the votes of matches `first` to `last` for the token at a level.

    Returns the number of candidates, the sum of all votes, those for unseen tokens included, and the length
    of the longest match.
    """
    found, total, voted_sources = 0, UNSEEN_VOTES, 0
    longest = matches[ints[ORDER, first], MATCH_LENGTH] + level if first < last else 0
    for i in range(first, last):
        at = ints[ORDER, i]
        token, match = matches[at, CONTINUATION + level], matches[at, MATCH_LENGTH] + level
        ints[CHOICE, i] = BREAK
        if token == BREAK:
            continue
        source = 1 << matches[at, SOURCE]
        votes = vote_weight(
            match, longest, matches[at, COUNT], matches[at, SOURCE], voted_sources & source == 0
        )
        voted_sources |= source
        c = 0
        while c < found and ints[CANDIDATE_TOKEN, c] != token:
            c += 1
        if c == found:
            ints[CANDIDATE_TOKEN, c], ints[CANDIDATE_SIZE, c], floats[CANDIDATE_VOTES, c] = token, 0, 0.0
            found += 1
        ints[CANDIDATE_SIZE, c] += 1
        ints[CHOICE, i] = c
        floats[CANDIDATE_VOTES, c] += votes
        total += votes
    return found, total + UNSEEN_VOTES_PER_CANDIDATE * found, longest


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
        ints[CANDIDATE_END, c] = end
        end += ints[CANDIDATE_SIZE, c]
        if floats[CANDIDATE_VOTES, c] > floats[CANDIDATE_VOTES, best]:
            best = c
    for i in range(first, last):
        c = ints[CHOICE, i]
        if c != BREAK:
            ints[SPARE, ints[CANDIDATE_END, c]] = ints[ORDER, i]
            ints[CANDIDATE_END, c] += 1
    for i in range(first, end):
        ints[ORDER, i] = ints[SPARE, i]
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
    elif filled > taken and floats[SURVIVAL, filled - 1] < survival:
        slot = ints[RANK, filled - 1]
    else:
        return -1, filled
    at = filled - 1
    while at > taken and floats[SURVIVAL, at - 1] < survival:
        ints[RANK, at], floats[SURVIVAL, at] = ints[RANK, at - 1], floats[SURVIVAL, at - 1]
        at -= 1
    ints[RANK, at], floats[SURVIVAL, at] = slot, survival
    return slot, filled
