"""A token tree grown from sightings, most likely nodes first.

Every sighting votes for the token that followed it, with a weight that grows with the length of its match;
one vote, and a share of one for each candidate, stays with what was never seen. A node's chance is its part
of the votes, its survival the product of chances from the root, and the tree takes the node with the best
survival until the budget is spent. Below a node only the sightings that agree with it so far have a say, and
their matches are one token longer.

The numbers in `weigh` were fitted on replayed transcripts (docs/lab-notes.md). They order the nodes here;
turning evidence into probabilities that hold is for `control`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from forerun.core.jit import compiled, inlined
from forerun.drafters.matches import AHEAD, BREAK, COUNT, MATCH, NUM_SOURCES, OWN, SOURCE, Ints
from forerun.types import ROOT, FloatArray, IntArray

Evidence: TypeAlias = npt.NDArray[np.float32]

EVIDENCE: Final = ("survival", "chance", "match", "count", "total", "sources", "record")
"""The columns of `Draft.evidence`, the same for every drafter that looks text up.

The estimated survival of the node and its chance given its parent; the longest match behind it; how many
sightings agree with it, out of how many at its parent; which sources these come from (a bit each, in the
order of `SOURCES`); and the best record of these sources with this request so far.
"""
SURVIVAL, CHANCE, MATCHED, AGREE, TOTAL, FROM, RECORD = range(7)

TOKENS, PARENTS = 0, 1
"""The rows of a tree as it is grown."""

# One row each of `ints`: of the sightings,
_ORDER, _SPARE, _CHOICE = 0, 1, 2
# of the candidates below one node,
_TOKEN, _SIZE, _SOURCES, _LONGEST, _END = 3, 4, 5, 6, 7
# of the nodes that were taken or may be, and their places by survival.
_NODE_TOKEN, _PARENT, _DEPTH, _FIRST, _LAST, _MATCHED, _TOTAL, _FROM, _RANK = 8, 9, 10, 11, 12, 13, 14, 15, 16
# And of `floats`: of the candidates, of the nodes by rank, of the nodes.
_VOTES, _SURVIVAL, _CHANCE = 0, 1, 2

UNSEEN: Final = 1.0
UNSEEN_EACH: Final = 0.4
"""Votes that stay with what was never seen: so many, and so many more for every candidate."""

_BEHIND: Final = 0.7 ** np.arange(11)
"""What a match is worth that is so many tokens shorter than the longest."""


class Workspace:
    """Room to grow trees in, used again and again; compiled loops are slowed down by making arrays."""

    __slots__ = ("floats", "ints")

    def __init__(self, width: int) -> None:
        self.ints = np.empty((_RANK + 1, width), dtype=np.int64)
        self.floats = np.empty((_CHANCE + 1, width), dtype=np.float64)

    @property
    def width(self) -> int:
        """The most nodes, and the most sightings, that there is room for."""
        return self.ints.shape[1]


@compiled
def grow(
    sightings: Ints,
    num: int,
    chain: bool,
    record: Evidence,
    nodes: IntArray,
    evidence: Evidence,
    ints: IntArray,
    floats: FloatArray,
) -> int:
    """Write the tokens and parents of the most likely tree, as many as `nodes` has columns; return how many.

    Nodes are taken in the order of their survival, so that the first k of them are the best tree of k nodes.
    A chain keeps only the best child of each node. The ranking lists the nodes taken and behind them the
    frontier; it is no longer than the budget, and what can no longer be taken falls off its end.
    """
    limits = (nodes.shape[1], min(nodes.shape[1], sightings.shape[1] - AHEAD))
    _sort_by_match(sightings, num, ints)
    node, filled = ROOT, 0
    while node + 1 < nodes.shape[1]:
        filled = _branch(sightings, num, limits, node, filled, chain, ints, floats)
        if node + 1 == filled:
            break
        node += 1
    for taken in range(node + 1):
        _write(taken, record, nodes, evidence, ints, floats)
    return node + 1


@inlined
def _branch(
    sightings: Ints,
    num: int,
    limits: tuple[int, int],
    node: int,
    filled: int,
    chain: bool,
    ints: IntArray,
    floats: FloatArray,
) -> int:
    """Rank the children of a node, within the budget and the depth there is, and return the new length."""
    budget, depth = limits
    level, first, last, alive = 0, 0, num, 1.0
    if node != ROOT:
        at = ints[_RANK, node]
        level, first, last = ints[_DEPTH, at], ints[_FIRST, at], ints[_LAST, at]
        alive = floats[_SURVIVAL, node]
    if level == depth:
        return filled
    found, total = _vote(sightings, first, last, level, ints, floats)
    best = _part(first, last, found, ints, floats)
    for c in range(found):
        if chain and c != best:
            continue
        chance = floats[_VOTES, c] / total
        at, filled = _enter(alive * chance, node + 1, filled, budget, ints, floats)
        if at >= 0:
            floats[_CHANCE, at] = chance
            ints[_PARENT, at], ints[_DEPTH, at], ints[_TOTAL, at] = node, level + 1, last - first
            _adopt(c, at, ints)
    return filled


@compiled
def _write(
    node: int, record: Evidence, nodes: IntArray, evidence: Evidence, ints: IntArray, floats: FloatArray
) -> None:
    """Copy a node and its evidence out of the workspace."""
    at = ints[_RANK, node]
    nodes[TOKENS, node], nodes[PARENTS, node] = ints[_NODE_TOKEN, at], ints[_PARENT, at]
    evidence[node, SURVIVAL], evidence[node, CHANCE] = floats[_SURVIVAL, node], floats[_CHANCE, at]
    evidence[node, MATCHED], evidence[node, TOTAL] = ints[_MATCHED, at], ints[_TOTAL, at]
    evidence[node, AGREE] = ints[_LAST, at] - ints[_FIRST, at]
    evidence[node, FROM], evidence[node, RECORD] = ints[_FROM, at], 0.0
    for source in range(NUM_SOURCES):
        if ints[_FROM, at] >> source & 1:
            evidence[node, RECORD] = max(evidence[node, RECORD], record[source])


@compiled
def _sort_by_match(sightings: Ints, num: int, ints: IntArray) -> None:
    """Order the sightings from the longest match to the shortest, otherwise as they come."""
    for i in range(num):
        at = i
        while at and sightings[ints[_ORDER, at - 1], MATCH] < sightings[i, MATCH]:
            ints[_ORDER, at] = ints[_ORDER, at - 1]
            at -= 1
        ints[_ORDER, at] = i


@compiled
def _vote(
    sightings: Ints, first: int, last: int, level: int, ints: IntArray, floats: FloatArray
) -> tuple[int, float]:
    """Count the votes of some sightings for the token at a level.

    Returns the number of candidates and the sum of all votes, those for the unseen included.
    """
    found, total, heard = 0, UNSEEN, 0
    longest = sightings[ints[_ORDER, first], MATCH] + level if first < last else 0
    for i in range(first, last):
        at = ints[_ORDER, i]
        token, match = sightings[at, AHEAD + level], sightings[at, MATCH] + level
        ints[_CHOICE, i] = BREAK
        if token == BREAK:
            continue
        source = 1 << sightings[at, SOURCE]
        votes = weigh(match, longest, sightings[at, COUNT], sightings[at, SOURCE], heard & source == 0)
        heard |= source
        c = 0
        while c < found and ints[_TOKEN, c] != token:
            c += 1
        if c == found:
            ints[_TOKEN, c], ints[_SIZE, c], ints[_SOURCES, c], ints[_LONGEST, c] = token, 0, 0, match
            floats[_VOTES, c] = 0.0
            found += 1
        ints[_SIZE, c] += 1
        ints[_SOURCES, c] |= source
        ints[_CHOICE, i] = c
        floats[_VOTES, c] += votes
        total += votes
    return found, total + UNSEEN_EACH * found


@compiled
def weigh(match: int, longest: int, count: int, source: int, first: bool) -> float:
    """The votes of a sighting: by its share of the text if nothing matches, else by how much does."""
    if match == 0:
        return count / 64.0
    votes = 0.4 * min(match, 16) * _BEHIND[min(longest - match, 10)]
    if source != OWN:
        votes *= 0.25
    return float(2.0 * votes if first else votes)


@compiled
def _part(first: int, last: int, found: int, ints: IntArray, floats: FloatArray) -> int:
    """Bring the sightings of each candidate together, and return the candidate with the most votes."""
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
def _enter(
    survival: float, taken: int, filled: int, budget: int, ints: IntArray, floats: FloatArray
) -> tuple[int, int]:
    """Rank a new node by its survival; returns its place, or -1 if it falls off, and the ranking's length."""
    if filled < budget:
        place = filled
        filled += 1
    elif filled > taken and floats[_SURVIVAL, filled - 1] < survival:
        place = ints[_RANK, filled - 1]
    else:
        return -1, filled
    at = filled - 1
    while at > taken and floats[_SURVIVAL, at - 1] < survival:
        ints[_RANK, at], floats[_SURVIVAL, at] = ints[_RANK, at - 1], floats[_SURVIVAL, at - 1]
        at -= 1
    ints[_RANK, at], floats[_SURVIVAL, at] = place, survival
    return place, filled


@compiled
def _adopt(c: int, at: int, ints: IntArray) -> None:
    """Make a candidate a node."""
    ints[_NODE_TOKEN, at], ints[_MATCHED, at], ints[_FROM, at] = (
        ints[_TOKEN, c],
        ints[_LONGEST, c],
        ints[_SOURCES, c],
    )
    ints[_FIRST, at], ints[_LAST, at] = ints[_END, c] - ints[_SIZE, c], ints[_END, c]
