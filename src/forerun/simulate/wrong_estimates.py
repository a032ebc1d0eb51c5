"""The controller with wrong estimates, against non-speculative decoding.

Cost curves and acceptance estimates are wrong from the start and, where `persistent`, stay so whatever is
measured. Step times can have heavy tails. Only the measured throughput can then show that drafting does not
pay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median
from typing import Any, Final

import numpy as np

from forerun.control.step_cost import StepCost
from forerun.control.survival import SurvivalEstimator
from forerun.simulate.grid import (
    GridCell,
    SimulatedTexts,
    TextKind,
    measure_throughput,
    step_seconds,
    timing_noise,
)
from forerun.simulate.policies import PROFILED_ROWS, ControllerPolicy
from forerun.types import BoolArray, FloatArray, IntArray

MAX_LENGTH: Final = 16
"""The controller's longest draft."""

COUNTED_STEPS: Final = range(200, 1200)
"""The steps that count."""

TAIL_SHARE: Final = 0.05
"""Share of step times that are disturbed, where tails are heavy."""

TAIL_EXPONENT: Final = 1.5
"""Exponent of the Pareto distribution of disturbances; its variance is infinite."""

KNEES: Final = (1, 8, 64)
ACCEPTANCES: Final = (0.0, 0.3, 0.7)
BATCHES: Final = (1, 16)


@dataclass(frozen=True, slots=True)
class WrongEstimates:
    """What the controller believes, relative to the truth.

    `level` multiplies all step times, `shape` what rows cost beyond the first, `survival` every survival
    probability. `overhead` is a cost of any step with draft tokens, which no curve by rows can show, as a
    share of a step of one row. Persistent errors are never corrected by measurements.
    """

    level: float = 1.0
    shape: float = 1.0
    survival: float = 1.0
    overhead: float = 0.0
    persistent: bool = False
    heavy_tails: bool = False

    def __str__(self) -> str:
        factors = {"cost level": self.level, "cost of rows": self.shape, "survival": self.survival}
        parts = [f"{name} x {factor:.2g}" for name, factor in factors.items() if factor != 1]
        parts += [f"overhead {self.overhead:.0%}"] if self.overhead else []
        flags = ["persistent"] * self.persistent + ["heavy tails"] * self.heavy_tails
        return ", ".join(parts + flags)

    def curve(self, seconds: FloatArray) -> StepCost:
        """The step cost that the controller starts with; `seconds` are the true ones at `PROFILED_ROWS`."""
        believed = self.level * (seconds[0] + self.shape * (seconds - seconds[0]))
        return (_FixedCost if self.persistent else StepCost)(PROFILED_ROWS.tolist(), believed.tolist())

    def estimator(self) -> SurvivalEstimator:
        """The survival estimates of the controller."""
        return _WrongSurvival(self.survival, self.persistent)

    def noise(self, random: np.random.Generator) -> float:
        """A factor on a measured step time."""
        factor = timing_noise(random)
        if self.heavy_tails and random.random() < TAIL_SHARE:
            factor *= 1.0 + float(random.pareto(TAIL_EXPONENT))
        return factor


class _FixedCost(StepCost):
    """A cost curve that no measurement corrects."""

    def update(self, rows: int, seconds: float, context: int = 0, *, sampled: bool = False) -> None:
        """Ignore the measurement."""


class _WrongSurvival(SurvivalEstimator):
    """Survival estimates that are wrong by a factor: the drafter's statements, or the calibrated values."""

    def __init__(self, factor: float, persistent: bool) -> None:
        super().__init__()
        self._factor, self._persistent = factor, persistent

    def estimate(
        self, drafter_survival: FloatArray, parents: IntArray, kinds: IntArray, slots: IntArray
    ) -> FloatArray:
        """The wrong survival probability of each draft token."""
        if self._persistent:
            right = super().estimate(drafter_survival, parents, kinds, slots)
            return np.minimum(self._factor * right, 0.999)
        return super().estimate(self._wrong(drafter_survival), parents, kinds, slots)

    def learn(
        self,
        drafter_survival: FloatArray,
        parents: IntArray,
        kinds: IntArray,
        slots: IntArray,
        accepted: BoolArray,
    ) -> None:
        """Learn from the drafter's wrong statements, or ignore that its estimates stay wrong."""
        stated = drafter_survival if self._persistent else self._wrong(drafter_survival)
        super().learn(stated, parents, kinds, slots, accepted)

    def _wrong(self, drafter_survival: FloatArray) -> FloatArray:
        return np.minimum(self._factor * drafter_survival, 0.999)


def wrong_estimates() -> list[WrongEstimates]:
    """Every error alone, and costs and acceptance wrong together; each corrected and persistent, and with
    and without heavy tails.
    """
    errors: list[dict[str, float]] = [{"level": 0.5}, {"level": 2.0}, {"shape": 0.5}, {"shape": 2.0}]
    errors += [{"shape": 0.0}, {"survival": 3.0}, {"survival": 1 / 3}, {"shape": 0.5, "survival": 3.0}]
    errors += [{"overhead": 0.1}]
    return [
        WrongEstimates(
            level=error.get("level", 1.0),
            shape=error.get("shape", 1.0),
            survival=error.get("survival", 1.0),
            overhead=error.get("overhead", 0.0),
            persistent=persistent,
            heavy_tails=heavy,
        )
        for error, persistent, heavy in product(errors, (False, True), (False, True))
    ]


def cells_with_errors() -> list[tuple[GridCell, WrongEstimates]]:
    """Every cell of a small grid with every error."""
    kinds: tuple[TextKind, ...] = ("stationary", "shifting")
    cells = [GridCell(*each) for each in product(KNEES, ACCEPTANCES, BATCHES, kinds)]
    return list(product(cells, wrong_estimates()))


def compare_with_baseline(
    cells: Iterable[tuple[GridCell, WrongEstimates]],
) -> Iterator[dict[str, Any]]:
    """Speedup of the controller over non-speculative decoding in every cell, over `COUNTED_STEPS`."""
    texts: SimulatedTexts | None = None
    for cell, error in cells:
        if texts is None or texts.cell != cell:  # the errors of a cell follow one another
            texts = SimulatedTexts(cell)
        baseline = cell.batch / float(step_seconds(cell, float(cell.batch)))
        policy = ControllerPolicy(
            error.curve(step_seconds(cell, PROFILED_ROWS)), MAX_LENGTH, error.estimator()
        )
        throughput = measure_throughput(
            cell, texts, policy, steps=COUNTED_STEPS, noise=error.noise, overhead=error.overhead
        )
        yield asdict(cell) | {"error": str(error), "speedup": throughput / baseline}


def summarise_errors(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Number of cells, worst and median speedup for each error."""
    speedups: dict[str, list[float]] = {}
    for result in results:
        speedups.setdefault(result["error"], []).append(result["speedup"])
    return [
        {"error": error, "cells": len(some), "worst": min(some), "median": median(some)}
        for error, some in speedups.items()
    ]
