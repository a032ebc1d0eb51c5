"""The controller against every fixed length, over costs, batches and texts.

A batch is always full: who is done is followed by the next. Texts are made before anything is decided: at
every place it is written whether a guess there is right, so that all who decide are tried on the same texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Final, Literal

import numpy as np

from forerun.control.step_cost import StepCost
from forerun.simulate.hardware import KNEE
from forerun.simulate.policies import WIDEST, ControllerPolicy, FixedLengthPolicy, Policy
from forerun.types import FloatArray, IntArray

KNEES: Final = (1, 8, 64, 512, 4096)
"""Rows at which a pass begins to cost what it multiplies: compute-bound for all batches to memory-bound."""

CHANCES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)
BATCHES: Final = (1, 4, 16, 64, 256)
Text = Literal["stationary", "shifting", "mixed"]
LENGTHS: Final = (0, 1, 2, 4, 8, 16)
"""The fixed lengths; 0 is plain decoding. The controller may guess as far as the longest."""

SECOND: Final = 0.02
"""What a pass of one row takes; only ratios matter."""

TOKENS: Final = 240
"""Tokens that a text has."""

STRETCH: Final = 120
"""Where texts shift, so many tokens at a time."""

POOR: Final = 0.05
"""Where texts are mixed, the chance in every other one."""

NOISE: Final = 0.03


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of the grid."""

    knee: int
    chance: float
    batch: int
    text: Text


def grid(
    knees: tuple[int, ...] = KNEES,
    chances: tuple[float, ...] = CHANCES,
    batches: tuple[int, ...] = BATCHES,
) -> list[Cell]:
    """All places: every cost, chance and batch for texts of one kind and for such as shift; and mixed texts
    where requests compete for rows, with a knee at twice the batch. Where guesses are free, or none pays,
    nobody can win anything by telling one request from another.
    """
    of_one_kind: tuple[Text, ...] = ("stationary", "shifting")
    one_kind = [Cell(*each) for each in product(knees, chances, batches, of_one_kind)]
    good, several = [each for each in chances if each > 0.5], [each for each in batches if each > 1]
    return one_kind + [Cell(2 * batch, chance, batch, "mixed") for chance, batch in product(good, several)]


def play(cells: list[Cell]) -> Iterator[dict[str, Any]]:
    """The controller's speed in every place, over plain decoding and over the best fixed length."""
    for cell in cells:
        texts = Texts(cell)
        fixed = {length: speed(cell, texts, FixedLengthPolicy(length)) for length in LENGTHS}
        rows = 2 ** np.arange(int(np.log2(WIDEST)) + 1)
        policy = ControllerPolicy(StepCost(rows.tolist(), _seconds(cell, rows).tolist()), max(LENGTHS))
        ours = speed(cell, texts, policy)
        best = max(fixed, key=fixed.__getitem__)
        yield asdict(cell) | {
            "over_plain": ours / fixed[0],
            "over_best_fixed": ours / fixed[best],
            "best_fixed": best,
            "spent_finding_out": policy.controller.purse.spent / policy.controller.purse.total,
        }


def _seconds(cell: Cell, rows: IntArray | float) -> FloatArray:
    """What passes take: flat up to the knee, and from there as their rows."""
    seconds: FloatArray = SECOND * np.power(1 + (np.asarray(rows) / cell.knee) ** KNEE, 1 / KNEE)
    return seconds


class Texts:
    """Texts by number: for each place, how many guesses in a row are right from there on."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self._known: dict[int, IntArray] = {}

    def __getitem__(self, number: int) -> IntArray:
        if number not in self._known:
            random = np.random.default_rng([number, 7])
            right = random.random(TOKENS) < self._chances(number)
            runs, run = np.zeros(TOKENS, dtype=np.int64), 0
            for place in range(TOKENS - 1, -1, -1):
                run = run + 1 if right[place] else 0
                runs[place] = run
            self._known[number] = runs
        return self._known[number]

    def _chances(self, number: int) -> FloatArray:
        cell, places = self.cell, np.arange(TOKENS)
        if cell.text == "mixed" and number % 2:
            return np.full(TOKENS, POOR)
        if cell.text == "shifting":
            return np.where((number // (2 * cell.batch) + places // STRETCH) % 2, 0.0, cell.chance)
        return np.full(TOKENS, cell.chance)

    @property
    def num(self) -> int:
        """How many are read: enough for a fair share of learning, and for a mean."""
        return max(16, 3 * self.cell.batch)


def speed(cell: Cell, texts: Texts, policy: Policy) -> float:
    """Tokens per second, reading all texts."""
    random = np.random.default_rng(5)
    reading = list(range(min(cell.batch, texts.num)))
    runs = np.stack([texts[number] for number in reading])
    places = np.zeros(len(reading), dtype=np.int64)
    names = [str(number) for number in reading]
    for name in names:
        policy.admit(name)
    ahead, seconds, tokens = len(reading), 0.0, 0
    while ahead < texts.num + cell.batch:
        lengths = policy.lengths(names, cell.batch, 0)
        stood = np.minimum(runs[np.arange(len(reading)), places], lengths)
        took = float(_seconds(cell, float(cell.batch + lengths.sum())))
        seconds += took
        policy.observe(stood, took * float(np.exp(NOISE * random.standard_normal())))
        said = np.minimum(stood + 1, TOKENS - places)
        tokens += int(said.sum())
        places += said
        for slot in np.flatnonzero(places >= TOKENS).tolist():
            policy.forget(names[slot])
            runs[slot], places[slot], names[slot] = texts[ahead], 0, str(ahead)
            policy.admit(names[slot])
            ahead += 1
    return tokens / seconds
