"""Speed under load, from the steps of an engine: as the clock saw it, and as it would be without noise.

A run is one way to decode, in one cell (a text, a temperature, so many requests at a time) and one turn. Ways
take turns, so each is compared with the plain run of its own turn. Beside that stands a ratio without noise:
steps are counted by their rows, and every row count costs what such steps cost everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.stats import bootstrap, ttest_1samp

PLAIN: Final = "plain"
OURS: Final = "forerun"

BEARABLE: Final = 0.98
"""The share of plain decoding's speed that nothing may fall below."""

ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a run with so many rows: how many, the tokens said, the seconds, all and in the middle."""

    rows: int
    num: int
    said: int
    seconds: float
    median: float


@dataclass(frozen=True, slots=True)
class Run:
    """One way to decode in one turn of a cell; cells of a family share what steps cost."""

    family: str
    cell: str
    way: str
    turn: int
    steps: tuple[Steps, ...]

    @classmethod
    def of(cls, name: tuple[str, str, str, int], steps: Iterable[tuple[int, int, float]]) -> Run:
        """A run from its steps: rows, tokens said, seconds."""
        by_rows: dict[int, list[tuple[int, float]]] = {}
        for rows, said, seconds in steps:
            by_rows.setdefault(rows, []).append((said, seconds))
        return cls(
            *name,
            tuple(
                Steps(
                    rows,
                    len(some),
                    sum(said for said, _ in some),
                    sum(seconds for _, seconds in some),
                    float(np.median([seconds for _, seconds in some])),
                )
                for rows, some in sorted(by_rows.items())
            ),
        )

    @property
    def said(self) -> int:
        """All tokens."""
        return sum(each.said for each in self.steps)

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.said / sum(each.seconds for each in self.steps)

    def seconds_by(self, curve: Curve) -> float:
        """How long the run takes if every step costs what the curve says."""
        return sum(each.num * curve.at(each.rows) for each in self.steps)


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by rows, never falling."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, rows: int) -> float:
        """The seconds of a step."""
        return float(np.interp(rows, self.rows, self.seconds))


def fitted(runs: Sequence[Run]) -> Curve:
    """What steps cost by their rows, over all runs of a family: machines have moods, so every turn of a cell
    has a factor of its own, which is not the curve's.
    """
    seen = [
        (run.cell, run.turn, each.rows, each.num, math.log(each.median)) for run in runs for each in run.steps
    ]
    cells, turns, rows, nums, logs = (np.array(column) for column in zip(*seen, strict=True))
    keys, turn_of = np.unique(np.char.add(np.char.add(cells, "/"), turns.astype(str)), return_inverse=True)
    knots, knot_of = np.unique(rows, return_inverse=True)
    moods, curve = np.zeros(len(keys)), np.zeros(len(knots))
    weights = np.bincount(knot_of, nums)
    for _ in range(ROUNDS):
        curve = _medians(logs - moods[turn_of], nums, knot_of, len(knots))
        curve = isotonic_regression(curve, weights=weights).x
        moods = _medians(logs - curve[knot_of], nums, turn_of, len(keys))
        moods -= np.median(moods)
    return Curve(tuple(knots.tolist()), tuple(np.exp(curve).tolist()))


def _medians(values: Any, weights: Any, groups: Any, num: int) -> Any:
    """The weighted median of every group."""
    out = np.zeros(num)
    for group in range(num):
        mine = np.flatnonzero(groups == group)
        order = mine[np.argsort(values[mine])]
        half = np.searchsorted(np.cumsum(weights[order]), weights[order].sum() / 2)
        out[group] = values[order[half]]
    return out


@dataclass(frozen=True, slots=True)
class Ratio:
    """How fast one way is beside another: the median over turns with its interval at 95 %, the same without
    noise, and the chance of such turns if it were just bearable, to be as low, and as high.
    """

    median: float
    low: float
    high: float
    without_noise: float
    p_below: float
    p_above: float

    @property
    def holds(self) -> bool:
        """Whether it is not below what is bearable: without noise, and not significantly by the clock."""
        return self.without_noise >= BEARABLE and self.p_below >= 0.05


def compare(mine: Sequence[Run], theirs: Sequence[Run], curve: Curve, bearable: float = BEARABLE) -> Ratio:
    """Runs of one way beside those of another in the same turns."""
    logs = np.log([one.speed / other.speed for one, other in zip(mine, theirs, strict=True)])
    low, high = bootstrap((logs,), np.median, method="percentile", random_state=0).confidence_interval
    said = sum(run.said for run in mine) / sum(run.said for run in theirs)
    seconds = sum(run.seconds_by(curve) for run in mine) / sum(run.seconds_by(curve) for run in theirs)
    tests = [ttest_1samp(logs, math.log(bearable), alternative=side).pvalue for side in ("less", "greater")]
    return Ratio(
        float(np.exp(np.median(logs))), math.exp(low), math.exp(high), said / seconds, *map(float, tests)
    )
