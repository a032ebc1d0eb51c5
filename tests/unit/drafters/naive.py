"""What the drafters promise, said as plainly as possible. Slow, and the measure of the fast ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
from numba import njit

from forerun.drafters.context_index import MOST_WALKED, NUM_FREQUENT, NUM_RUNGS
from forerun.drafters.match_tree import UNSEEN, UNSEEN_EACH, weigh
from forerun.drafters.matches import BREAK, LONGEST


def match_length(text: Sequence[int], place: int, context: Sequence[int]) -> int:
    """How many of the last tokens of a context are found at and before a place."""
    length = 0
    while (
        length < min(LONGEST, len(context), place + 1)
        and text[place - length] == context[len(context) - 1 - length] != BREAK
    ):
        length += 1
    return length


def places(text: Sequence[int], context: Sequence[int], *, own: bool) -> list[tuple[int, int]]:
    """Every place where the end of a context is found, newest first, with the length of its match."""
    last = len(text) - 1 if own else len(text)
    found = [(match_length(text, place, context), place) for place in range(last - 1, -1, -1)]
    return [(length, place) for length, place in found if length]


def sightings(text: Sequence[int], context: Sequence[int], most: int, *, own: bool) -> list[tuple[int, int]]:
    """The sightings of an index: rung by rung from the longest contexts, the most recent on each."""
    found = places(text, context, own=own)
    noted: list[tuple[int, int]] = []
    for rung in range(NUM_RUNGS - 1, -1, -1):
        here = [(length, place) for length, place in found if length >= 1 << rung][:MOST_WALKED]
        noted += [(length, place) for length, place in here if length < 2 << rung or rung == NUM_RUNGS - 1]
    return noted[:most]


def frequent(text: Sequence[int]) -> list[tuple[int, int]]:
    """The most frequent tokens that came more than once: how often, and where last."""
    last = {token: place for place, token in enumerate(text) if token != BREAK}
    counted = sorted(((count, last[token]) for token, count in Counter(text).items() if token in last))
    return sorted((count, place) for count, place in counted[-NUM_FREQUENT:] if count > 1)


def ahead(text: Sequence[int], begin: int, depth: int, *, own: bool) -> list[int]:
    """What follows: a text repeats itself at its end, another's ends."""
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
    rows: list[tuple[int, int, int, list[int]]], depth: int, budget: int
) -> list[tuple[float, list[int]]]:
    """The most likely paths, best first, of sightings given as (match, source, count, tokens)."""
    frontier: list[tuple[float, list[int]]] = []
    taken: list[tuple[float, list[int]]] = [(1.0, [])]
    for _ in range(budget):
        survival, path = taken[-1]
        if len(path) < depth:
            frontier += [(survival * chance, [*path, token]) for token, chance in chances(rows, path).items()]
        if not frontier:
            break
        best = max(frontier, key=lambda node: node[0])
        frontier.remove(best)
        taken.append(best)
    return taken[1:]


def chances(rows: list[tuple[int, int, int, list[int]]], path: list[int]) -> dict[int, float]:
    """The chance of every token behind a path, from the sightings that agree with it."""
    level = len(path)
    agreeing = sorted((row for row in rows if row[3][:level] == path), key=lambda row: -row[0])
    votes: dict[int, float] = {}
    heard: set[int] = set()
    for match, source, count, tokens in agreeing:
        token = tokens[level]
        if token != BREAK:
            longest = agreeing[0][0] + level
            weight = weigh(match + level, longest, count, source, source not in heard)
            votes[token] = votes.get(token, 0.0) + weight
            heard.add(source)
    total = UNSEEN + sum(votes.values()) + UNSEEN_EACH * len(votes)
    return {token: count / total for token, count in votes.items()}


def ints(tokens: Sequence[int]) -> np.ndarray:
    """Tokens as the indexes take them."""
    return np.array(tokens, dtype=np.int32)


def sabotaged(function: Any, **others: Callable[..., Any]) -> Any:
    """A compiled function, compiled once more with some of what it calls replaced."""
    replaced = {name: other if hasattr(other, "py_func") else njit(other) for name, other in others.items()}
    plain = function.py_func
    return njit(FunctionType(plain.__code__, {**plain.__globals__, **replaced}, plain.__name__))
