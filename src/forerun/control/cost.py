"""What a pass of the target costs, by how many rows it has.

Where decoding waits for memory the curve is nearly flat, in steps; where it waits for arithmetic it rises
with every row. It is measured before anything is guessed and mended by every step after that.

Machines have moods: the same pass may take half as long again a minute later. Neighbouring steps share the
mood, so it is told apart from the curve by looking only at how a step differs from those just before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from forerun.core.compiled import compiled
from forerun.types import FloatArray

REPEATS: Final = 4
ENOUGH: Final = 3.0
"""The curve is measured so many times, or until that took so many seconds; once at least."""

TOO_SLOW: Final = 1.0
"""A pass that takes so many seconds ends the curve; wider ones would only take longer."""

CONTEXTS: Final = (4096, 16384, 65536, 262144, 1048576)
"""Tokens of context in a pass, all requests together, that part one curve from the next."""

NOISE: Final = 0.08**2
MOOD_MOVES: Final = 0.05**2
CURVE_MOVES: Final = 2e-5
MOOD_DOUBT: Final = 0.5**2
CURVE_DOUBT: Final = 0.05**2
"""Variances of logarithms: of a step's time; of how the machine's mood and a point of the curve move in a
step; of the mood before the first step, and of the curve as it was measured."""

SURPRISE: Final = 0.25
"""No step is more surprising than this, as a logarithm: something else was in the way."""


class StepCost:
    """Seconds by rows, a curve that never falls: one for every band of context, with greedy requests alone
    and with others.
    """

    def __init__(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        self.rows: FloatArray = np.asarray(rows, dtype=np.float64)
        profile = np.log(np.asarray(seconds, dtype=np.float64))
        self._bands: dict[int, _Band] = {0: _Band(profile, np.full(len(profile), CURVE_DOUBT))}
        self._mood, self._mood_doubt = 0.0, MOOD_DOUBT

    @classmethod
    def measured(cls, seconds: Callable[[int], float], most: int, *, by_clock: bool = True) -> StepCost:
        """The curve of a step that says how long it took with so many rows, up to `most`.

        The fastest of a few turns counts, since what a busy machine adds is not the step's. Between powers of
        two the curve is a line, and behind the last it goes on as it ended. If not `by_clock`, slow steps are
        measured as often as others: ranks that work together must agree on what they run.
        """
        rows = [1, 2]
        seconds(1)  # whatever is made at first use
        while 2 * rows[-1] <= most and (seconds(rows[-1]) < TOO_SLOW or not by_clock):
            rows.append(2 * rows[-1])
        turns: list[list[float]] = []
        while len(turns) < REPEATS and (np.sum(turns) < ENOUGH or not by_clock):
            turns.append([seconds(num) for num in rows])
        return cls(rows, np.min(turns, axis=0).tolist())

    def values(self) -> dict[str, Any]:
        """The curves as values, without today's mood; `of` makes them again."""
        return {
            "rows": self.rows.tolist(),
            "bands": {str(number): np.exp(band.curve).tolist() for number, band in self._bands.items()},
        }

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> StepCost:
        """Curves from what `values` said."""
        bands = {int(number): seconds for number, seconds in values["bands"].items()}
        cost = cls(values["rows"], bands.pop(0))
        for number, seconds in bands.items():
            cost._bands[number] = _Band(np.log(seconds), np.full(len(seconds), CURVE_DOUBT))
        cost._mood_doubt = math.inf
        return cost

    @classmethod
    def typical(cls) -> StepCost:
        """A curve to begin with where nothing could be measured: decoding that waits for memory, with guesses
        at 1.2 % of a step each (SmolLM2 on two cores). The first step says what a second is.
        """
        cost = cls((1, 8, 64, 512), [1 + 0.012 * rows for rows in (0, 7, 63, 511)])
        cost._mood_doubt = math.inf
        return cost

    def seconds(self, context: int = 0, *, sampled: bool = False) -> FloatArray:
        """The curve with so many tokens of context, at `rows`; where tokens are `sampled` it is another: that
        takes time for every row.
        """
        return rising(np.exp(self._band(context, sampled).curve + self._mood))

    def __call__(self, rows: FloatArray, context: int = 0, *, sampled: bool = False) -> FloatArray:
        """Seconds of passes with so many rows."""
        curve = self.seconds(context, sampled=sampled)
        return read(self.rows, curve, np.asarray(rows, dtype=np.float64))

    def at(self, rows: int, context: int = 0, *, sampled: bool = False) -> float:
        """Seconds of one pass."""
        return float(self(np.array([float(rows)]), context, sampled=sampled)[0])

    def took(self, rows: int, seconds: float, context: int = 0, *, sampled: bool = False) -> None:
        """A pass of so many rows took so long.

        A Kalman filter: the surprise is shared between mood and curve as each is in doubt, so that rows that
        were not seen for long learn most from it.
        """
        surprise = math.log(max(seconds, 1e-9) / self.at(rows, context, sampled=sampled))
        if math.isinf(self._mood_doubt):
            self._mood, self._mood_doubt = surprise, MOOD_DOUBT
            return
        band, parts = self._band(context, sampled), self._parts(rows)
        self._mood_doubt += MOOD_MOVES
        for each in self._bands.values():
            each.doubt += CURVE_MOVES
        all_doubt = self._mood_doubt + float(parts**2 @ band.doubt) + NOISE
        most = max(SURPRISE, 2 * math.sqrt(self._mood_doubt))  # at first anything may be a mood
        self._mood += self._mood_doubt / all_doubt * min(max(surprise, -most), most)
        self._mood_doubt *= 1 - self._mood_doubt / all_doubt
        gain = parts * band.doubt / all_doubt
        band.curve += gain * min(max(surprise, -SURPRISE), SURPRISE)
        band.doubt *= 1 - gain * parts

    def _parts(self, rows: int) -> FloatArray:
        """By how much each point of the curve says what so many rows cost."""
        parts = np.zeros(len(self.rows))
        right = int(np.clip(np.searchsorted(self.rows, rows), 1, len(self.rows) - 1))
        width = self.rows[right] - self.rows[right - 1]
        parts[right] = min(max((rows - self.rows[right - 1]) / width, 0.0), 1.0)
        parts[right - 1] = 1 - parts[right]
        return parts

    def _band(self, context: int, sampled: bool) -> _Band:
        """The curve of a band; a new one begins as its nearest neighbour is."""
        number = int(np.searchsorted(CONTEXTS, context)) + (len(CONTEXTS) + 1) * sampled
        if number not in self._bands:
            per_kind = len(CONTEXTS) + 1
            nearest = self._bands[
                min(
                    self._bands,
                    key=lambda known: (
                        abs(known % per_kind - number % per_kind),
                        known // per_kind != number // per_kind,
                    ),
                )
            ]
            self._bands[number] = _Band(nearest.curve.copy(), np.full(len(self.rows), CURVE_DOUBT))
        return self._bands[number]


@dataclass(slots=True)
class _Band:
    """Logarithms of seconds at the points of a curve, and the variance of each."""

    curve: FloatArray
    doubt: FloatArray


@compiled
def rising(values: FloatArray) -> FloatArray:
    """The nearest curve that never falls, by least squares: neighbours that fall are levelled."""
    means, sizes = np.empty(len(values)), np.empty(len(values), dtype=np.int64)
    blocks = 0
    for value in values:
        means[blocks], sizes[blocks] = value, 1
        blocks += 1
        while blocks > 1 and means[blocks - 2] > means[blocks - 1]:
            size = sizes[blocks - 2] + sizes[blocks - 1]
            both = means[blocks - 2] * sizes[blocks - 2] + means[blocks - 1] * sizes[blocks - 1]
            means[blocks - 2], sizes[blocks - 2] = both / size, size
            blocks -= 1
    out = np.empty(len(values))
    at = 0
    for block in range(blocks):
        out[at : at + sizes[block]] = means[block]
        at += sizes[block]
    return out


@compiled
def read(knots: FloatArray, seconds: FloatArray, rows: FloatArray) -> FloatArray:
    """The seconds of passes: lines between the knots, and the last line goes on behind them."""
    out = np.empty(len(rows))
    for i in range(len(rows)):
        out[i] = read_one(knots, seconds, rows[i])
    return out


@compiled
def read_one(knots: FloatArray, seconds: FloatArray, rows: float) -> float:
    """The seconds of one pass."""
    if rows <= knots[0]:
        return float(seconds[0])
    right = 1
    while right < len(knots) - 1 and knots[right] < rows:
        right += 1
    slope = (seconds[right] - seconds[right - 1]) / (knots[right] - knots[right - 1])
    return float(seconds[right] + (rows - knots[right]) * slope)
