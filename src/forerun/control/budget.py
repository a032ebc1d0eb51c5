"""How many guesses to make in a step: as many as pay for the time they take.

All requests of a batch share one pass, so their guesses compete for its rows: the likeliest first, whoever's
they are. No guess at all is always a choice.

What time is worth is not what this step makes of it but what steps make of it in the long run: tokens per
second are the sum of all tokens over the sum of all seconds, and that ratio is largest where each step makes
the most of tokens - rate * seconds, with the rate that comes out (Dinkelbach 1967). A poor step should be
over soon, and a good one may take longer.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from forerun.control.cost import read_one
from forerun.core.compiled import compiled
from forerun.types import FloatArray, IntArray

MARGIN: Final = 0.01
"""Guessing has to bring so many tokens more for every one that plain decoding says: estimates err, and the
best of many errs up."""


@compiled
def how_many(
    survivals: FloatArray,
    tokens: float,
    rows: int,
    curve: tuple[FloatArray, FloatArray],
    rate: float,
    extra: float,
) -> tuple[int, float]:
    """How many guesses to take, the likeliest first, and what they are worth in tokens.

    Without any, the pass has so many rows and says so many tokens, and a second is worth `rate` of them;
    `extra` seconds pass before it if there is any.
    """
    knots, seconds = curve
    plain = read_one(knots, seconds, rows)
    best, most, gained = 0, MARGIN * tokens, 0.0
    for num in range(1, len(survivals) + 1):
        gained += survivals[num - 1]
        worth = gained - rate * (read_one(knots, seconds, rows + num) + extra - plain)
        if worth > most:
            best, most = num, worth
    return best, most if best else 0.0


def likeliest(
    survivals: FloatArray, rows: int, curve: tuple[FloatArray, FloatArray], rate: float
) -> IntArray:
    """The places of the guesses that `how_many` could take, the likeliest first: of thousands only those that
    would pay if all of them stood for as much as everybody's guesses together.
    """
    most = how_many_at_most(survivals.sum(), len(survivals), rows, curve, rate)
    some = np.argpartition(-survivals, most)[:most] if most < len(survivals) else np.arange(len(survivals))
    return some[np.argsort(-survivals[some], kind="stable")]


@compiled
def how_many_at_most(
    tokens: float, num: int, rows: int, curve: tuple[FloatArray, FloatArray], rate: float
) -> int:
    """How many of so many guesses can be checked in the time that these tokens pay for."""
    knots, seconds = curve
    enough = read_one(knots, seconds, rows) + tokens / rate
    low, high = 0, num
    while low < high:  # the curve never falls
        middle = (low + high + 1) // 2
        if read_one(knots, seconds, rows + middle) <= enough:
            low = middle
        else:
            high = middle - 1
    return low


@compiled
def how_far(
    chances: FloatArray,
    rooms: IntArray,
    rows: int,
    curve: tuple[FloatArray, FloatArray],
    rate: float,
    pass_seconds: float,
) -> IntArray:
    """How many guesses a drafter that takes a pass of its own for every depth is to make for each request.

    Each guess for a request stands with the same chance if those before it do.
    """
    num_requests, deepest = len(rooms), rooms.max() if len(rooms) else 0
    budgets, most, reached = np.zeros(num_requests, dtype=np.int64), 0.0, 0
    survivals = np.empty(num_requests * deepest)
    owners = np.empty(num_requests * deepest, dtype=np.int64)
    alive, num = np.ones(num_requests), 0
    for depth in range(1, deepest + 1):
        for i in range(num_requests):
            if rooms[i] >= depth:
                alive[i] *= chances[i]
                survivals[num], owners[num] = alive[i], i
                num += 1
        order = np.argsort(-survivals[:num])
        taken, worth = how_many(survivals[:num][order], num_requests, rows, curve, rate, depth * pass_seconds)
        if worth > most:
            most, reached = worth, depth
            budgets = np.bincount(owners[order[:taken]], minlength=num_requests)
        elif depth > 2 * reached + 2:
            break
    return budgets
