"""Slow reference implementations of the drafters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np
from numba import njit

from forerun.drafters.context_index import NUM_FREQUENT, NUM_LEVELS
from forerun.drafters.context_lookup import MAX_WALK
from forerun.drafters.match_tree import UNSEEN_VOTES, UNSEEN_VOTES_PER_CANDIDATE, vote_weight
from forerun.drafters.matches import BREAK, MAX_MATCH
from forerun.drafters.successor_votes import LAST_LOGITS_DEPTH, LONG_MATCH, MEDIUM_MATCH, VoteWeights


def match_length(text: Sequence[int], position: int, context: Sequence[int]) -> int:
    """Number of last tokens of a context found at and before a position."""
    length = 0
    while (
        length < min(MAX_MATCH, len(context), position + 1)
        and text[position - length] == context[len(context) - 1 - length] != BREAK
    ):
        length += 1
    return length


def occurrences(text: Sequence[int], context: Sequence[int], *, own: bool) -> list[tuple[int, int]]:
    """Match length and position of every occurrence of the end of a context, newest first."""
    last = len(text) - 1 if own else len(text)
    found = [(match_length(text, position, context), position) for position in range(last - 1, -1, -1)]
    return [(length, position) for length, position in found if length]


def matches(
    text: Sequence[int], context: Sequence[int], max_matches: int, *, own: bool
) -> list[tuple[int, int]]:
    """Matches of an index: level by level from the longest contexts, most recent first."""
    found = occurrences(text, context, own=own)
    collected: list[tuple[int, int]] = []
    for level in range(NUM_LEVELS - 1, -1, -1):
        here = [(length, position) for length, position in found if length >= 1 << level][:MAX_WALK]
        collected += [
            (length, position) for length, position in here if length < 2 << level or level == NUM_LEVELS - 1
        ]
    return collected[:max_matches]


def frequent(text: Sequence[int]) -> list[tuple[int, int]]:
    """Count and last position of the most frequent tokens that occur more than once."""
    last = {token: position for position, token in enumerate(text) if token != BREAK}
    counted = sorted(((count, last[token]) for token, count in Counter(text).items() if token in last))
    return sorted((count, position) for count, position in counted[-NUM_FREQUENT:] if count > 1)


def continuation(text: Sequence[int], begin: int, depth: int, *, own: bool) -> list[int]:
    """Tokens from `begin` on: a request's own text wraps around, any other text ends."""
    tokens: list[int] = []
    at = begin
    for _ in range(depth):
        if at == len(text):
            at = begin if own else at
        token = text[at] if at < len(text) and (not tokens or tokens[-1] != BREAK) else BREAK
        tokens.append(token)
        at += 1
    return tokens


def tree(
    rows: list[tuple[int, int, int, list[int]]],
    depth: int,
    budget: int,
    successors: Successors | None = None,
) -> list[tuple[float, list[int]]]:
    """The most likely paths, best first, of matches given as (length, source, count, tokens)."""
    frontier: list[tuple[float, list[int]]] = []
    taken: list[tuple[float, list[int]]] = [(1.0, [])]
    for _ in range(budget):
        survival, path = taken[-1]
        if len(path) < depth:
            frontier += [
                (survival * probability, [*path, token])
                for token, probability in probabilities(rows, path, successors).items()
            ]
        if not frontier:
            break
        best = max(frontier, key=lambda node: node[0])
        frontier.remove(best)
        taken.append(best)
    return taken[1:]


@dataclass(frozen=True)
class Successors:
    """The rows of likely next tokens, with probabilities, by context, and the last tokens of the text."""

    tail: Sequence[int]
    recycled: Sequence[tuple[int, int, dict[int, float]]]
    static: Sequence[tuple[int, dict[int, float]]]
    weights: VoteWeights = field(default_factory=VoteWeights)

    def votes(self, path: list[int], longest: int) -> tuple[dict[int, float], float]:
        """Votes for the tokens after a path, and their total with those for unseen tokens."""
        w = self.weights
        text = [self.tail[2], self.tail[1], self.tail[0], *path]
        scale = w.long_match if longest >= LONG_MATCH else w.medium_match if longest >= MEDIUM_MATCH else 1.0
        pairs = {(previous, last): row for previous, last, row in self.recycled}
        tokens = {last: row for _, last, row in self.recycled}
        votes: Counter[int] = Counter()
        total = 0.0
        beside = 1.0
        if (text[-2], text[-1]) in pairs:
            beside = w.beside_pair
            total += scale * w.pair
            votes += Counter(
                {x: scale * w.pair * p**w.pair_power for x, p in pairs[text[-2], text[-1]].items()}
            )
        static = dict(self.static)
        amount = w.token if text[-1] in tokens else w.token * w.static
        if (row := tokens.get(text[-1], static.get(text[-1]))) is not None:
            total += scale * beside * amount
            votes += Counter({x: scale * beside * amount * p**w.token_power for x, p in row.items()})
        if len(path) < LAST_LOGITS_DEPTH and (text[0], text[1]) in pairs:
            amount = scale * w.last_logits[len(path)]
            total += amount
            others = {x: p for x, p in pairs[text[0], text[1]].items() if x != self.tail[0]}
            votes += Counter(
                {x: amount * (p / sum(others.values())) ** w.last_logits_power for x, p in others.items()}
            )
        return dict(votes), total


def probabilities(
    rows: list[tuple[int, int, int, list[int]]], path: list[int], successors: Successors | None = None
) -> dict[int, float]:
    """Probability of every token after a path, from the matches that agree with it, and from successors."""
    level = len(path)
    agreeing = sorted((row for row in rows if row[3][:level] == path), key=lambda row: -row[0])
    votes: dict[int, float] = {}
    voted_sources: set[int] = set()
    for match, source, count, tokens in agreeing:
        token = tokens[level]
        if token != BREAK:
            longest = agreeing[0][0] + level
            weight = vote_weight(match + level, longest, count, source, source not in voted_sources)
            votes[token] = votes.get(token, 0.0) + weight
            voted_sources.add(source)
    total = UNSEEN_VOTES + sum(votes.values()) + UNSEEN_VOTES_PER_CANDIDATE * len(votes)
    if successors is not None:
        longest = agreeing[0][0] + level if agreeing else 0
        more, amount = successors.votes(path, longest)
        total += amount
        votes = dict(Counter(votes) + Counter(more))
    return {token: count / total for token, count in votes.items()}


def ints(tokens: Sequence[int]) -> np.ndarray:
    """Tokens in the dtype of the indexes."""
    return np.array(tokens, dtype=np.int32)


def sabotaged(function: Any, **others: Callable[..., Any]) -> Any:
    """A compiled function, recompiled with some of its callees replaced."""
    replaced = {name: other if hasattr(other, "py_func") else njit(other) for name, other in others.items()}
    original = function.py_func
    return njit(FunctionType(original.__code__, {**original.__globals__, **replaced}, original.__name__))
