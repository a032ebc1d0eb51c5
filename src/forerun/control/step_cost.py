"""What a pass of the target costs, by how many rows it has.

Where decoding waits for memory the curve is nearly flat, in steps; where it waits for arithmetic it rises
with every row. It is measured before anything is guessed and mended by every step after that.

Machines have moods: the same pass may take half as long again a minute later. A step's time says what mood
and curve are together. They are told apart by steps of other rows nearby, which share the mood: a Kalman
filter keeps what is known of all of them with what it knows of each pair, so that many steps of one kind do
not pass for knowledge of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from forerun.core.jit import compiled
from forerun.types import FloatArray

REPEATS: Final = 4
MIN_SECONDS: Final = 3.0
"""The curve is measured so many times, or until that took so many seconds; once at least."""

TILE: Final = 16
"""Matrices are multiplied in tiles of so many rows, or of a few times as many."""

TOO_SLOW: Final = 1.0
"""A pass that takes so many seconds ends the curve; wider ones would only take longer."""

CONTEXTS: Final = (4096, 16384, 65536, 262144, 1048576)
"""Tokens of context in a pass, all requests together, that part one curve from the next."""

NOISE: Final = 0.08**2
SPEED_DRIFT_VARIANCE: Final = 0.03**2
CURVE_DRIFT_VARIANCE: Final = 5e-6
SPEED_PRIOR_VARIANCE: Final = 10.0**2
CURVE_PRIOR_VARIANCE: Final = 0.2**2
"""Variances of logarithms: of a step's time; of how the machine's mood and a point of the curve move in a
step; of the mood before the first step, and of the curve as it was measured, on a machine that may have been
busy with something else just then."""

ALIKE: Final = 2.0
"""Points of the curve err together: by a factor of e less for so many doublings of rows between them."""

CAUTION: Final = 0.5
"""Deviations that wider passes are taken to be dearer than they seem."""

SURPRISE: Final = 0.25
"""No step is more surprising than this, as a logarithm, or than what is known allows: something else was in
the way."""


def sizes(largest: int) -> list[int]:
    """The numbers of rows to measure up to `largest`: powers of two, and the first row of the next tile."""
    powers = [2**exponent for exponent in range(max(2, largest).bit_length())]
    return sorted([*powers, *(num + 1 for num in powers[:-1] if num >= TILE)])


class StepCost:
    """Seconds by rows, a curve that never falls: one for every band of context, with greedy requests alone
    and with others. `doubt` is the variance of what it begins with, as a logarithm.
    """

    def __init__(
        self, rows: Sequence[int], seconds: Sequence[float], *, doubt: float = CURVE_PRIOR_VARIANCE
    ) -> None:
        self.rows: FloatArray = np.asarray(rows, dtype=np.float64)
        if len(rows) < 2 or not (np.diff(self.rows) > 0).all() or not _are_times(seconds):
            raise ValueError("a curve needs two points or more, from few rows to many, each with its seconds")
        self._widest_doubt = doubt
        apart = np.abs(np.subtract.outer(np.log2(self.rows), np.log2(self.rows)))
        self._alike = np.exp(-apart / ALIKE)
        self._bands: dict[int, slice] = {}
        self._known = np.zeros(1)  # the mood, and then the curve of one band after the other, as logarithms
        self._doubt = np.full((1, 1), SPEED_PRIOR_VARIANCE)
        self._add(0, np.log(np.asarray(seconds, dtype=np.float64)))

    def _add(self, number: int, curve: FloatArray, like: slice | None = None) -> slice:
        """A curve for a band, perhaps one that began as another: what is learnt of that is news of this."""
        old, size = len(self._known), len(curve)
        doubt = np.zeros((old + size, old + size))
        doubt[:old, :old] = self._doubt
        doubt[old:, old:] = self._widest_doubt * self._alike
        if like is not None:
            doubt[old:, :old] = self._doubt[like]
            doubt[:old, old:] = self._doubt[:, like]
            doubt[old:, old:] += self._doubt[like, like]
        self._known, self._doubt = np.concatenate([self._known, curve]), doubt
        self._bands[number] = slice(old, old + size)
        return self._bands[number]

    @classmethod
    def profile(cls, seconds: Callable[[int], float], most: int, *, by_clock: bool = True) -> StepCost:
        """The curve of a step that says how long it took with so many rows, up to `most`.

        The fastest of a few turns counts, since what a busy machine adds is not the step's. It is measured at
        powers of two, and right behind those at which tiles end: there it often leaps. Between them the curve
        is a line, and behind the last it goes on as it ended. If not `by_clock`, slow steps are measured as
        often as others: ranks that work together must agree on what they run.
        """
        largest = 2
        seconds(1)  # whatever is made at first use
        while 2 * largest <= most and (seconds(largest) < TOO_SLOW or not by_clock):
            largest *= 2
        rows = sizes(largest)
        turns: list[list[float]] = []
        while len(turns) < REPEATS and (np.sum(turns) < MIN_SECONDS or not by_clock):
            turns.append([seconds(num) for num in rows])
        return cls(rows, np.min(turns, axis=0).tolist())

    def to_dict(self) -> dict[str, Any]:
        """The curves as values, without today's mood; `of` makes them again."""
        return {
            "rows": self.rows.tolist(),
            "bands": {
                str(number): np.exp(self._known[band]).tolist() for number, band in self._bands.items()
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StepCost:
        """Curves from what `values` said."""
        bands = {int(number): seconds for number, seconds in values["bands"].items()}
        cost = cls(values["rows"], bands.pop(0))
        for number, seconds in bands.items():
            if len(seconds) != len(cost.rows) or not _are_times(seconds):
                raise ValueError("every curve has its seconds for the same rows")
            cost._add(number, np.log(seconds))
        return cost

    @classmethod
    def default(cls) -> StepCost:
        """A curve to begin with where nothing could be measured: decoding that waits for memory, with guesses
        at 1.2 % of a step each (SmolLM2 on two cores). The first step says what a second is.
        """
        return cls((1, 8, 64, 512), [1 + 0.012 * rows for rows in (0, 7, 63, 511)])

    def curve_at(self, context: int = 0, *, sampled: bool = False) -> FloatArray:
        """The curve with so many tokens of context, at `rows`; where tokens are `sampled` it is another: that
        takes time for every row. Where it falls, points that are better known count for more.
        """
        band = self._band(context, sampled)  # which may add one
        return shown(self._known, self._doubt, band.start, band.stop)

    def upper_curve(
        self, rows: int, context: int = 0, *, sampled: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """The same, seen from a pass of so many rows, with a point there: what wider ones cost more is made
        dearer by how much it is in doubt, so that nobody guesses because of what is not known.
        """
        band = self._band(context, sampled)
        return seen_from(float(rows), self.rows, self._known, self._doubt, band.start, band.stop)

    def at(self, rows: int, context: int = 0, *, sampled: bool = False) -> float:
        """Seconds of one pass."""
        return read_one(self.rows, self.curve_at(context, sampled=sampled), float(rows))

    def knows(self, rows: int) -> bool:
        """Whether a pass of so many rows is near enough to the curve to say anything about it."""
        return bool(0 < rows <= 2 * self.rows[-1])

    def curve(self, *, sampled: bool) -> FloatArray | None:
        """The curve of the shortest contexts there were, if there were any; whoever asks changes nothing."""
        some = [number for number in self._bands if number // (len(CONTEXTS) + 1) == sampled]
        if not some:
            return None
        band = self._bands[min(some)]
        return shown(self._known, self._doubt, band.start, band.stop)

    def update(self, rows: int, seconds: float, context: int = 0, *, sampled: bool = False) -> None:
        """A pass of so many rows took so long."""
        band = self._band(context, sampled)
        took, filtered = (float(rows), math.log(max(seconds, 1e-9))), (self._known, self._doubt)
        hear(took, self.rows, *filtered, self._alike, band.start, self._widest_doubt)

    def _band(self, context: int, sampled: bool) -> slice:
        """Where the curve of a band is; a new one begins as its nearest neighbour is."""
        per_kind = len(CONTEXTS) + 1
        number = int(np.searchsorted(CONTEXTS, context)) + per_kind * sampled
        known = self._bands.get(number)
        if known is not None:
            return known

        def distance(other: int) -> tuple[int, bool]:
            return abs(other % per_kind - number % per_kind), other // per_kind != number // per_kind

        nearest = self._bands[min(self._bands, key=distance)]
        return self._add(number, self._known[nearest].copy(), nearest)


def _are_times(seconds: Sequence[float]) -> bool:
    values = np.asarray(seconds, dtype=np.float64)
    return bool(np.isfinite(values).all() and (values > 0).all())


@compiled
def rising(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The nearest curve that never falls, by weighted least squares: neighbours that fall are levelled."""
    means, totals = np.empty(len(values)), np.empty(len(values))
    sizes = np.empty(len(values), dtype=np.int64)
    blocks = 0
    for i in range(len(values)):
        means[blocks], totals[blocks], sizes[blocks] = values[i], weights[i], 1
        blocks += 1
        while blocks > 1 and means[blocks - 2] > means[blocks - 1]:
            total = totals[blocks - 2] + totals[blocks - 1]
            both = means[blocks - 2] * totals[blocks - 2] + means[blocks - 1] * totals[blocks - 1]
            means[blocks - 2], totals[blocks - 2] = both / total, total
            sizes[blocks - 2] += sizes[blocks - 1]
            blocks -= 1
    out = np.empty(len(values))
    at = 0
    for block in range(blocks):
        out[at : at + sizes[block]] = means[block]
        at += sizes[block]
    return out


@compiled
def parts_of(rows: float, knots: FloatArray) -> FloatArray:
    """By how much each point of a curve says what so many rows cost."""
    parts = np.zeros(len(knots))
    right = min(max(int(np.searchsorted(knots, rows)), 1), len(knots) - 1)
    width = knots[right] - knots[right - 1]
    parts[right] = min(max((rows - knots[right - 1]) / width, 0.0), 1.0)
    parts[right - 1] = 1.0 - parts[right]
    return parts


@compiled
def shown(known: FloatArray, doubt: FloatArray, first: int, last: int) -> FloatArray:
    """The curve of a band in today's mood, made to rise; what is better known counts for more."""
    values, weights = np.empty(last - first), np.empty(last - first)
    for i in range(last - first):
        values[i] = np.exp(known[first + i] + known[0])
        weights[i] = 1.0 / (doubt[first + i, first + i] + NOISE)
    return rising(values, weights)


@compiled
def seen_from(
    rows: float, knots: FloatArray, known: FloatArray, doubt: FloatArray, first: int, last: int
) -> tuple[FloatArray, FloatArray]:
    """A curve and its points with one at so many rows, behind which doubt makes it dearer: by what is known
    of the difference.
    """
    seconds, parts = shown(known, doubt, first, last), parts_of(rows, knots)
    mine = doubt[first:last, first:last]
    across = np.zeros(len(knots))
    here = 0.0
    for i in range(len(knots)):
        for j in range(len(knots)):
            across[i] += mine[i, j] * parts[j]
        here += parts[i] * across[i]
    dear = seconds.copy()
    for i in range(len(knots) - 1, -1, -1):
        if knots[i] > rows:
            dear[i] *= np.exp(CAUTION * np.sqrt(max(mine[i, i] + here - 2.0 * across[i], 0.0)))
        if i + 1 < len(knots):
            dear[i] = min(dear[i], dear[i + 1])  # nothing is dearer than what is wider
    place = int(np.searchsorted(knots, rows))
    if place < len(knots) and knots[place] == rows:
        return knots, dear
    more, costs = np.empty(len(knots) + 1), np.empty(len(knots) + 1)
    more[:place], more[place], more[place + 1 :] = knots[:place], rows, knots[place:]
    costs[:place], costs[place + 1 :] = dear[:place], dear[place:]
    costs[place] = read_one(knots, seconds, rows)
    return more, costs


@compiled
def hear(
    took: tuple[float, float],
    knots: FloatArray,
    known: FloatArray,
    doubt: FloatArray,
    alike: FloatArray,
    first: int,
    widest: float,
) -> None:
    """A step of the filter: time passed, and a pass of so many rows took e^now seconds."""
    rows, now = took
    drift(doubt, alike, first, widest)
    mend(rows, now, knots, known, doubt, first)


@compiled
def drift(doubt: FloatArray, alike: FloatArray, first: int, widest: float) -> None:
    """Between steps mood and curve may have moved; no point is more in doubt than it was at first."""
    doubt[0, 0] += SPEED_DRIFT_VARIANCE
    if widest <= 0.0:
        return
    free = np.empty(len(alike))
    for i in range(len(alike)):
        free[i] = np.sqrt(max(1.0 - doubt[first + i, first + i] / widest, 0.0))
    for i in range(len(alike)):
        for j in range(len(alike)):
            doubt[first + i, first + j] += CURVE_DRIFT_VARIANCE * alike[i, j] * free[i] * free[j]


@compiled
def mend(
    rows: float, now: float, knots: FloatArray, known: FloatArray, doubt: FloatArray, first: int
) -> None:
    """What is known after a pass of so many rows took e^now seconds, in place."""
    size = len(knots)
    weights = parts_of(rows, knots)
    for i in range(size):
        weights[i] *= np.exp(known[first + i])
    expected = weights.sum()
    weights /= expected
    if rows > knots[-1]:
        expected = read_one(knots, shown(known, doubt, first, first + size), rows) / np.exp(known[0])
    surprise = now - np.log(expected) - known[0]
    shared = doubt[:, 0].copy()
    for i in range(size):
        shared += weights[i] * doubt[:, first + i]
    variance = shared[0] + NOISE
    for i in range(size):
        variance += weights[i] * shared[first + i]
    most = max(SURPRISE, 2.0 * np.sqrt(variance))
    variance *= max(1.0, abs(surprise) / most)  # the more surprising, the less it counts
    for i in range(len(known)):
        known[i] += shared[i] / variance * surprise
        for j in range(len(known)):
            doubt[i, j] -= shared[i] * shared[j] / variance


@compiled
def read_one(knots: FloatArray, seconds: FloatArray, rows: float) -> float:
    """The seconds of a pass: lines between the knots, and the last line goes on behind them."""
    if rows <= knots[0]:
        return float(seconds[0])
    right = 1
    while right < len(knots) - 1 and knots[right] < rows:
        right += 1
    slope = (seconds[right] - seconds[right - 1]) / (knots[right] - knots[right - 1])
    return float(seconds[right] + (rows - knots[right]) * slope)
