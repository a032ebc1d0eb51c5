"""Speed under load from the steps of an engine: as measured, and noise-free from a fitted cost curve.

A run is one decoding mode in one cell (a text, a temperature, a concurrency) and one turn. Modes alternate,
so each run is compared with the baseline run of its own turn. The noise-free ratio counts steps by their
rows and charges each row count its cost over all runs. forerun's own overhead is measured separately and
counts for every mode except the baseline, which is vLLM as it is.

Requests are counted whole: a step has the weight of its counted requests over all running requests. Counting
the steps of a time window would favour texts that end soon, since more of them fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, Final

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.stats import bootstrap, ttest_1samp

from forerun.json_records import rename_keys

BASELINE: Final = "baseline"
FORERUN: Final = "forerun"

MIN_RATIO: Final = 0.98
"""The lowest acceptable speed as a share of the baseline's."""

MIN_RATIO_TO_BEST: Final = 0.97
"""The lowest acceptable speed as a share of the best fixed draft length's."""

TURN_PENALTY: Final = 0.1
"""Weight of the assumption that turns do not differ, in deviations of one step."""

HUBER_THRESHOLD: Final = 0.1
"""Relative deviation from the fitted cost above which steps count less."""

NUM_REWEIGHTINGS: Final = 20
"""Iterations of the robust fit."""

TimedStep = tuple[int, float, int, float, float]
"""A step: rows, share of requests that count, their tokens, seconds, and forerun's overhead in seconds."""


@dataclass(frozen=True, slots=True)
class StepGroup:
    """The weighted steps of a run with the same number of rows.

    `num`, `num_tokens` and `seconds` are totals; `median` is the median time of a step, and `overhead` the
    mean time that forerun itself takes in one: controller, drafter and bookkeeping.
    """

    rows: int
    num: float
    num_tokens: int
    seconds: float
    median: float
    overhead: float


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One decoding mode in one turn of a cell. Cells of a family share their cost curve."""

    family: str
    cell: str
    mode: str
    turn: int
    steps: tuple[StepGroup, ...]

    @classmethod
    def from_steps(cls, name: tuple[str, str, str, int], steps: Iterable[TimedStep]) -> LoadRun:
        """Group the steps of a run by their rows."""
        by_rows: dict[int, list[TimedStep]] = {}
        for step in steps:
            by_rows.setdefault(step[0], []).append(step)
        groups = []
        for rows, some in sorted(by_rows.items()):
            _, shares, tokens, seconds, overheads = zip(*some, strict=True)
            total, median = float(np.dot(shares, seconds)), float(np.median(seconds))
            overhead = float(np.average(overheads, weights=shares))
            times = (round(each, 6) for each in (total, median, overhead))
            groups.append(StepGroup(rows, sum(shares), sum(tokens), *times))
        return cls(*name, tuple(groups))

    @property
    def num_tokens(self) -> int:
        """All counted tokens."""
        return sum(each.num_tokens for each in self.steps)

    @property
    def speed(self) -> float:
        """Tokens per second; the baseline is not charged forerun's overhead."""
        is_baseline = self.mode == BASELINE
        seconds = sum(each.seconds - is_baseline * each.num * each.overhead for each in self.steps)
        return self.num_tokens / seconds

    @property
    def num_steps(self) -> float:
        """The weighted number of steps."""
        return sum(each.num for each in self.steps)

    def seconds_by(self, curve: CostCurve) -> float:
        """The duration of the run if each step has the curve's cost, plus forerun's overhead."""
        has_overhead = self.mode != BASELINE
        return sum(each.num * (curve.at(each.rows) + has_overhead * each.overhead) for each in self.steps)


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a step by its rows, non-decreasing."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, rows: int) -> float:
        """The seconds of a step."""
        return float(np.interp(rows, self.rows, self.seconds))


def fit_costs(runs: Sequence[LoadRun]) -> CostCurve:
    """Fit the cost of a step by its rows, without forerun's overhead, over all runs of a family.

    Machine speed and text lengths vary, so every turn of a cell has a factor of its own. Factors and curve
    are fitted together by weighted least squares of logarithms with Huber weights, which discount steps that
    were disturbed within a turn; isotonic regression then makes the curve non-decreasing.
    """
    seen = [(f"{run.cell} {run.turn}", each) for run in runs for each in run.steps]
    turns, turn_of = np.unique([turn for turn, _ in seen], return_inverse=True)
    knots, knot_of = np.unique([each.rows for _, each in seen], return_inverse=True)
    logs = np.log([max(each.median - each.overhead, 1e-9) for _, each in seen])
    nums = weights = np.array([each.num for _, each in seen])
    design = np.zeros((len(seen) + len(turns), len(knots) + len(turns)))
    indices = np.arange(len(seen))
    design[indices, knot_of] = design[indices, len(knots) + turn_of] = 1.0
    design[len(seen) :, len(knots) :] = TURN_PENALTY * np.eye(len(turns))  # pulls factors towards 1
    target = np.concatenate([logs, np.zeros(len(turns))])
    for _ in range(NUM_REWEIGHTINGS):
        scale = np.sqrt(np.concatenate([weights, np.ones(len(turns))]))
        solution = np.linalg.lstsq(scale[:, None] * design, scale * target, rcond=None)[0]
        residuals = np.abs(target - design @ solution)[: len(seen)]
        weights = nums * np.minimum(1.0, HUBER_THRESHOLD / np.maximum(residuals, HUBER_THRESHOLD))
    rising = isotonic_regression(solution[: len(knots)], weights=np.bincount(knot_of, weights)).x
    return CostCurve(tuple(knots.tolist()), tuple(np.exp(rising).tolist()))


@dataclass(frozen=True, slots=True)
class LoadRatio:
    """The speed of one mode over another's: the median over turns with its 95 % confidence interval, and the
    noise-free ratio. `p_below` is the p-value of turns this low if the true ratio were just acceptable.
    """

    median: float
    low: float
    high: float
    without_noise: float
    p_below: float

    @property
    def holds(self) -> bool:
        """Whether the noise-free ratio is acceptable and the measured one not significantly below."""
        return self.without_noise >= MIN_RATIO and self.p_below >= 0.05


def compare(
    runs: Sequence[LoadRun], others: Sequence[LoadRun], curve: CostCurve, min_ratio: float = MIN_RATIO
) -> LoadRatio:
    """Compare the runs of one mode with those of another in the same turns."""
    logs = np.log([one.speed / other.speed for one, other in zip(runs, others, strict=True)])
    low, high = bootstrap((logs,), np.median, method="percentile", random_state=0).confidence_interval
    tokens = sum(run.num_tokens for run in runs) / sum(run.num_tokens for run in others)
    seconds = sum(run.seconds_by(curve) for run in runs) / sum(run.seconds_by(curve) for run in others)
    p_below = ttest_1samp(logs, math.log(min_ratio), alternative="less").pvalue
    return LoadRatio(
        float(np.exp(np.median(logs))), math.exp(low), math.exp(high), tokens / seconds, float(p_below)
    )


def to_rows(runs: Sequence[LoadRun]) -> list[dict[str, Any]]:
    """Runs as JSON values; the inverse of `from_rows`."""
    return [asdict(run) | {"steps": [list(astuple(each)) for each in run.steps]} for run in runs]


def from_rows(rows: Sequence[dict[str, Any]]) -> list[LoadRun]:
    """Runs from JSON values, also from those of earlier records, which have other names."""
    return [
        LoadRun(
            row["family"].replace("drawn", "sampled"),
            row["cell"],
            row["mode"].replace("plain", BASELINE),
            row["turn"],
            tuple(StepGroup(*each) for each in row["steps"]),
        )
        for row in (rename_keys(each, {"way": "mode"}) for each in rows)
    ]
