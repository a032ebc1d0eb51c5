"""Comparison of the controller with every fixed draft length, over costs, batches and texts.

Batches are always full: the next request replaces a finished one. Texts are generated beforehand and fix for
every position whether a draft token is accepted there, so all policies see the same texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Final, Literal

import numpy as np

from forerun.control.step_cost import StepCost
from forerun.simulate.hardware import KNEE_SHARPNESS
from forerun.simulate.policies import PROFILED_ROWS, ControllerPolicy, FixedLengthPolicy, Policy
from forerun.types import FloatArray, IntArray

KNEES: Final = (1, 8, 64, 512, 4096)
"""Row counts at which a step becomes compute-bound: from compute-bound to memory-bound for all batches."""

ACCEPTANCES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)
BATCHES: Final = (1, 4, 16, 64, 256)
TextKind = Literal["stationary", "shifting", "mixed"]
LENGTHS: Final = (0, 1, 2, 4, 8, 16)
"""Fixed draft lengths; 0 is non-speculative decoding. The controller's maximum is the longest of them."""

ONE_ROW_SECONDS: Final = 0.02
"""Seconds of a step at the flat end of the cost curve; only ratios matter."""

TOKENS_PER_TEXT: Final = 240
"""Tokens per text."""

SEGMENT_TOKENS: Final = 120
"""Tokens per segment of shifting texts."""

LOW_ACCEPTANCE: Final = 0.05
"""Acceptance probability of every other request in mixed batches."""

TIMING_NOISE: Final = 0.03


@dataclass(frozen=True, slots=True)
class GridCell:
    """One cell of the grid."""

    knee: int
    acceptance: float
    batch: int
    text: TextKind


def grid(
    knees: tuple[int, ...] = KNEES,
    acceptances: tuple[float, ...] = ACCEPTANCES,
    batches: tuple[int, ...] = BATCHES,
) -> list[GridCell]:
    """All cells: every cost, acceptance probability and batch for stationary and shifting texts, and mixed
    batches in which requests compete for rows, with the knee at twice the batch size.

    Where draft tokens are free, or where none pays, distinguishing requests gains nothing; mixed batches
    leave these cases out.
    """
    uniform_kinds: tuple[TextKind, ...] = ("stationary", "shifting")
    uniform_cells = [GridCell(*each) for each in product(knees, acceptances, batches, uniform_kinds)]
    high, batched = [each for each in acceptances if each > 0.5], [each for each in batches if each > 1]
    mixed_cells = [
        GridCell(2 * batch, acceptance, batch, "mixed") for acceptance, batch in product(high, batched)
    ]
    return uniform_cells + mixed_cells


def run_grid(cells: list[GridCell]) -> Iterator[dict[str, Any]]:
    """Speedup of the controller in every cell, over the baseline and over the best fixed length."""
    for cell in cells:
        texts = SimulatedTexts(cell)
        fixed = {length: measure_throughput(cell, texts, FixedLengthPolicy(length)) for length in LENGTHS}
        cost = StepCost(PROFILED_ROWS.tolist(), step_seconds(cell, PROFILED_ROWS).tolist())
        policy = ControllerPolicy(cost, max(LENGTHS))
        throughput = measure_throughput(cell, texts, policy)
        best = max(fixed, key=fixed.__getitem__)
        budget = policy.controller.exploration_budget
        yield asdict(cell) | {
            "speedup": throughput / fixed[0],
            "speedup_over_best_fixed": throughput / fixed[best],
            "best_fixed": best,
            "exploration_share": budget.spent / budget.total,
        }


def step_seconds(cell: GridCell, rows: IntArray | float) -> FloatArray:
    """Step time: flat up to the knee, then proportional to the rows."""
    relative = (np.asarray(rows) / cell.knee) ** KNEE_SHARPNESS
    seconds: FloatArray = ONE_ROW_SECONDS * np.power(1 + relative, 1 / KNEE_SHARPNESS)
    return seconds


class SimulatedTexts:
    """Texts by number: for each position, the number of consecutive draft tokens accepted from there."""

    def __init__(self, cell: GridCell) -> None:
        self.cell = cell
        self._known: dict[int, IntArray] = {}

    def __getitem__(self, number: int) -> IntArray:
        if number not in self._known:
            random = np.random.default_rng([number, 7])
            correct = random.random(TOKENS_PER_TEXT) < self._acceptances(number)
            runs, run = np.zeros(TOKENS_PER_TEXT, dtype=np.int64), 0
            for position in range(TOKENS_PER_TEXT - 1, -1, -1):
                run = run + 1 if correct[position] else 0
                runs[position] = run
            self._known[number] = runs
        return self._known[number]

    def _acceptances(self, number: int) -> FloatArray:
        cell, positions = self.cell, np.arange(TOKENS_PER_TEXT)
        if cell.text == "mixed" and number % 2:
            return np.full(TOKENS_PER_TEXT, LOW_ACCEPTANCE)
        if cell.text == "shifting":
            return np.where(
                (number // (2 * cell.batch) + positions // SEGMENT_TOKENS) % 2, 0.0, cell.acceptance
            )
        return np.full(TOKENS_PER_TEXT, cell.acceptance)

    @property
    def num(self) -> int:
        """Number of texts to decode: enough for learning to have its usual share, and for a stable mean."""
        return max(16, 3 * self.cell.batch)


def timing_noise(random: np.random.Generator) -> float:
    """A factor on a measured step time."""
    return float(np.exp(TIMING_NOISE * random.standard_normal()))


def measure_throughput(
    cell: GridCell,
    texts: SimulatedTexts,
    policy: Policy,
    *,
    steps: range | None = None,
    noise: Callable[[np.random.Generator], float] = timing_noise,
    overhead: float = 0.0,
) -> float:
    """Tokens per second over all texts, or over these steps with as many texts as they take.

    `noise` disturbs the times that the policy sees. Steps with draft tokens take longer by `overhead`, as a
    share of `ONE_ROW_SECONDS`.
    """
    random = np.random.default_rng(5)
    numbers = list(range(min(cell.batch, texts.num)))
    runs = np.stack([texts[number] for number in numbers])
    positions = np.zeros(len(numbers), dtype=np.int64)
    names = [str(number) for number in numbers]
    for name in names:
        policy.admit(name)
    next_number, seconds, tokens, num_steps = len(numbers), 0.0, 0, 0
    while next_number < texts.num + cell.batch if steps is None else num_steps < steps.stop:
        lengths = policy.lengths(names, cell.batch, 0)
        num_accepted = np.minimum(runs[np.arange(len(numbers)), positions], lengths)
        step = float(step_seconds(cell, float(cell.batch + lengths.sum())))
        step += overhead * ONE_ROW_SECONDS if lengths.any() else 0.0
        policy.observe(num_accepted, step * noise(random))
        emitted = np.minimum(num_accepted + 1, TOKENS_PER_TEXT - positions)
        if steps is None or num_steps >= steps.start:
            seconds, tokens = seconds + step, tokens + int(emitted.sum())
        num_steps += 1
        positions += emitted
        for slot in np.flatnonzero(positions >= TOKENS_PER_TEXT).tolist():
            policy.forget(names[slot])
            runs[slot], positions[slot], names[slot] = texts[next_number], 0, str(next_number)
            policy.admit(names[slot])
            next_number += 1
    return tokens / seconds
