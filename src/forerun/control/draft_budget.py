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

from forerun.control.step_cost import read_one
from forerun.core.jit import compiled
from forerun.types import BoolArray, FloatArray, IntArray

Curve = tuple[FloatArray, FloatArray]
"""Rows, and the seconds of passes that have so many."""

Worth = tuple[Curve, float]
"""The curve of a step's passes, and the tokens that a second is worth."""

MARGIN: Final = 0.01
"""Guessing has to bring so many tokens more for every one that plain decoding says: estimates err, and the
best of many errs up."""

LEVELS: Final = 1000
"""Survivals are told apart by so many."""


@compiled
def num_worth_verifying(
    survivals: FloatArray, tokens: float, rows: int, curve: Curve, rate: float, extra: float
) -> tuple[int, float]:
    """How many guesses to take, the likeliest first, and what they are worth in tokens.

    Without any, the pass has so many rows and says so many tokens, and a second is worth `rate` of them;
    `extra` seconds pass before it if there is any.
    """
    knots, seconds = curve
    plain = read_one(knots, seconds, rows)
    best, most, gained, left = 0, MARGIN * tokens, 0.0, survivals.sum()
    for num in range(1, len(survivals) + 1):
        gained += survivals[num - 1]
        left -= survivals[num - 1]
        worth = gained - rate * (read_one(knots, seconds, rows + num) + extra - plain)
        if worth > most:
            best, most = num, worth
        elif worth + left <= most:  # the curve never falls
            break
    return best, most if best else 0.0


@compiled
def by_survival(survivals: FloatArray, free: BoolArray) -> IntArray:
    """The places of the guesses that are free, the likeliest first. They are told apart by parts in a
    thousand; of those that are alike the first comes first, so that none is before what it follows.
    """
    begins = np.zeros(LEVELS + 1, dtype=np.int64)
    for place in range(len(survivals)):
        if free[place]:
            begins[_level(survivals[place]) + 1] += 1
    for level in range(LEVELS):
        begins[level + 1] += begins[level]
    order = np.empty(begins[LEVELS], dtype=np.int64)
    for place in range(len(survivals)):
        if free[place]:
            level = _level(survivals[place])
            order[begins[level]] = place
            begins[level] += 1
    return order


@compiled
def _level(survival: float) -> int:
    return min(max(int((1.0 - survival) * LEVELS), 0), LEVELS - 1)


@compiled
def keep_most_likely(
    kept: BoolArray, survivals: FloatArray, free: BoolArray, num_requests: int, rows: int, worth: Worth
) -> None:
    """Keep the likeliest guesses, whoever's they are, as many as pay beside those that are kept."""
    curve, rate = worth
    tokens = float(num_requests)
    for place in range(len(kept)):
        if kept[place]:
            tokens += survivals[place]
            rows += 1
    order = by_survival(survivals, free)
    num, _ = num_worth_verifying(survivals[order], tokens, rows, curve, rate, 0.0)
    for place in order[:num]:
        kept[place] = True


@compiled
def keep_exploratory(
    kept: BoolArray, firsts: IntArray, hopes: FloatArray, rows: int, worth: Worth, purse: float
) -> float:
    """Keep as many of these guesses, in this order, as a purse can pay for, and say what they cost."""
    (knots, seconds), rate = worth
    rows += kept.sum()
    plain, dearest, hope, num, price = read_one(knots, seconds, rows), -np.inf, 0.0, 0, 0.0
    for place in firsts:
        hope += hopes[place]
        loss = read_one(knots, seconds, rows + num + 1) - plain - hope / rate
        dearest = max(dearest, loss)
        if dearest > purse:
            break
        num, price = num + 1, loss
    for place in firsts[:num]:
        kept[place] = True
    return price


@compiled
def draft_lengths(
    chances: FloatArray,
    rooms: IntArray,
    rows: int,
    curve: Curve,
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
        taken, worth = num_worth_verifying(
            survivals[:num][order], num_requests, rows, curve, rate, depth * pass_seconds
        )
        if worth > most:
            most, reached = worth, depth
            budgets = np.bincount(owners[order[:taken]], minlength=num_requests)
        elif depth > 2 * reached + 2:
            break
    return budgets
