"""Speed under load, from the steps of an engine: as the clock saw it, and as it would be without noise.

A run is one way to decode, in one cell (a text, a temperature, so many requests at a time) and one turn. Ways
take turns, so each is compared with the plain run of its own turn. Beside that stands a ratio without noise:
steps are counted by their rows, and every row count costs what such steps cost everywhere; what forerun
itself takes is measured apart and counts for every way but plain decoding, which is vLLM as it is.

Requests are counted whole: every step has the weight of those in it that count, over all that are under way.
Steps within a stretch of time would favour texts that are soon over, of which more fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, Final

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.stats import bootstrap, ttest_1samp

PLAIN: Final = "plain"
OURS: Final = "forerun"

MAX_LOSS: Final = 0.98
"""The share of plain decoding's speed that nothing may fall below."""

NEAR: Final = 0.97
"""The share of the best fixed length's speed that is near enough."""

FAINT: Final = 0.1
"""How much it counts that no turn differs from others, in deviations of one step."""

DISTURBED: Final = 0.1
"""By what share steps may differ from what such steps cost before they count less."""

ROUNDS: Final = 20
"""How often it is weighed anew what was disturbed."""

Timed = tuple[int, float, int, float, float]
"""A step: its rows, the share of its requests that count, their tokens, its seconds, and what is ours."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a run with so many rows, by their weights: how many, the tokens said, the seconds; and of
    a step, the seconds in the middle, and what is ours of them on the average: deciding, guessing, hearing.
    """

    rows: int
    num: float
    said: int
    seconds: float
    median: float
    own: float


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One way to decode in one turn of a cell; cells of a family share what steps cost."""

    family: str
    cell: str
    way: str
    turn: int
    steps: tuple[Steps, ...]

    @classmethod
    def of(cls, name: tuple[str, str, str, int], steps: Iterable[Timed]) -> LoadRun:
        """A run from its steps."""
        by_rows: dict[int, list[Timed]] = {}
        for step in steps:
            by_rows.setdefault(step[0], []).append(step)
        found = []
        for rows, some in sorted(by_rows.items()):
            _, shares, said, seconds, own = zip(*some, strict=True)
            all_seconds, middle = float(np.dot(shares, seconds)), float(np.median(seconds))
            ours = float(np.average(own, weights=shares))
            times = (round(each, 6) for each in (all_seconds, middle, ours))
            found.append(Steps(rows, sum(shares), sum(said), *times))
        return cls(*name, tuple(found))

    @property
    def said(self) -> int:
        """All tokens."""
        return sum(each.said for each in self.steps)

    @property
    def speed(self) -> float:
        """Tokens per second; plain decoding has no time of ours in it."""
        plain = self.way == PLAIN
        return self.said / sum(each.seconds - plain * each.num * each.own for each in self.steps)

    @property
    def num_steps(self) -> float:
        """How many steps it is made of."""
        return sum(each.num for each in self.steps)

    def seconds_by(self, curve: CostCurve) -> float:
        """How long the run takes if every step costs what the curve says, and what we take."""
        ours = self.way != PLAIN
        return sum(each.num * (curve.at(each.rows) + ours * each.own) for each in self.steps)


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds by rows, never falling."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, rows: int) -> float:
        """The seconds of a step."""
        return float(np.interp(rows, self.rows, self.seconds))


def fitted(runs: Sequence[LoadRun]) -> CostCurve:
    """What steps cost by their rows, without what is ours, over all runs of a family.

    Machines have moods, and texts have lengths: every turn of a cell has a factor of its own. Factors and
    curve are found together by weighted least squares of logarithms, in which what was disturbed half-way
    through a turn counts less, as Huber has it; then the curve is made to rise.
    """
    seen = [(f"{run.cell} {run.turn}", each) for run in runs for each in run.steps]
    turns, turn_of = np.unique([turn for turn, _ in seen], return_inverse=True)
    knots, knot_of = np.unique([each.rows for _, each in seen], return_inverse=True)
    logs = np.log([max(each.median - each.own, 1e-9) for _, each in seen])
    nums = weights = np.array([each.num for _, each in seen])
    table = np.zeros((len(seen) + len(turns), len(knots) + len(turns)))
    places = np.arange(len(seen))
    table[places, knot_of] = table[places, len(knots) + turn_of] = 1.0
    table[len(seen) :, len(knots) :] = FAINT * np.eye(len(turns))  # factors are near 1, if nothing else says
    wanted = np.concatenate([logs, np.zeros(len(turns))])
    for _ in range(ROUNDS):
        scale = np.sqrt(np.concatenate([weights, np.ones(len(turns))]))
        found = np.linalg.lstsq(scale[:, None] * table, scale * wanted, rcond=None)[0]
        off = np.abs(wanted - table @ found)[: len(seen)]
        weights = nums * np.minimum(1.0, DISTURBED / np.maximum(off, DISTURBED))
    rising = isotonic_regression(found[: len(knots)], weights=np.bincount(knot_of, weights)).x
    return CostCurve(tuple(knots.tolist()), tuple(np.exp(rising).tolist()))


@dataclass(frozen=True, slots=True)
class LoadRatio:
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
        return self.without_noise >= MAX_LOSS and self.p_below >= 0.05


def compare(
    mine: Sequence[LoadRun], theirs: Sequence[LoadRun], curve: CostCurve, bearable: float = MAX_LOSS
) -> LoadRatio:
    """Runs of one way beside those of another in the same turns."""
    logs = np.log([one.speed / other.speed for one, other in zip(mine, theirs, strict=True)])
    low, high = bootstrap((logs,), np.median, method="percentile", random_state=0).confidence_interval
    said = sum(run.said for run in mine) / sum(run.said for run in theirs)
    seconds = sum(run.seconds_by(curve) for run in mine) / sum(run.seconds_by(curve) for run in theirs)
    tests = [ttest_1samp(logs, math.log(bearable), alternative=side).pvalue for side in ("less", "greater")]
    return LoadRatio(
        float(np.exp(np.median(logs))), math.exp(low), math.exp(high), said / seconds, *map(float, tests)
    )


def lines_of(runs: list[LoadRun]) -> list[dict[str, Any]]:
    """A line for each cell: every way over plain decoding, and ours over the best fixed length."""
    curves: dict[str, CostCurve] = {
        name: fitted([run for run in runs if run.family == name]) for name in {run.family for run in runs}
    }
    lines = []
    for cell in dict.fromkeys(run.cell for run in runs):
        mine = [run for run in runs if run.cell == cell]
        lines.append(line_of(mine, curves[mine[0].family]))
    return lines


def line_of(runs: list[LoadRun], curve: CostCurve) -> dict[str, Any]:
    """One cell."""
    ways = {way: [run for run in runs if run.way == way] for way in dict.fromkeys(run.way for run in runs)}
    dtype, text, concurrency = runs[0].cell.split(" | ")
    steps = {way: sum(run.num_steps for run in ways[way]) for way in (OURS, PLAIN)}
    ratios = {way: compare(some, ways[PLAIN], curve) for way, some in ways.items() if way != PLAIN}
    line: dict[str, Any] = {
        "dtype": dtype,
        "text": text,
        "concurrency": int(concurrency),
        "over_plain": asdict(ratios[OURS]),
        "holds": ratios[OURS].holds,
        "tokens_per_step": sum(run.said for run in ways[OURS]) / steps[OURS] / int(concurrency),
        "steps": {way: round(num) for way, num in steps.items()},
    }
    fixed = {way: asdict(ratio) for way, ratio in ratios.items() if way != OURS}
    if fixed:
        best = max(fixed, key=lambda way: float(fixed[way]["without_noise"]))
        over = compare(ways[OURS], ways[best], curve, NEAR)
        line |= {"fixed": fixed, "best": best, "over_best": asdict(over)}
    return line


def markdown(lines: Sequence[dict[str, Any]]) -> str:
    """The lines as a table for documents."""
    titles = ["", "text", "at a time", "over plain, by the clock", "without noise", "tokens a step"]
    titles += ["best fixed", "over it, by the clock", "without noise"]
    rows = [titles, ["---"] * 2 + ["---:"] * 7]
    for line in lines:
        ours, over = line["over_plain"], line.get("over_best")
        cells = [line["dtype"], line["text"], str(line["concurrency"])]
        cells += [_clock(ours), f"{ours['without_noise']:.3f}", f"{line['tokens_per_step']:.2f}"]
        if over is None:
            cells += [""] * 3
        else:
            cells += [line["best"].removeprefix("fixed "), _clock(over), f"{over['without_noise']:.3f}"]
        rows.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _clock(ratio: dict[str, float]) -> str:
    return "{median:.2f} [{low:.2f}, {high:.2f}]".format(**ratio)


def values(runs: Sequence[LoadRun]) -> list[dict[str, Any]]:
    """Runs as values; `runs_of` makes them again."""
    return [asdict(run) | {"steps": [list(astuple(each)) for each in run.steps]} for run in runs]


def runs_of(values: Sequence[dict[str, Any]]) -> list[LoadRun]:
    """Runs from what `values` said."""
    return [LoadRun(**{**run, "steps": tuple(Steps(*each) for each in run["steps"])}) for run in values]
