"""What was found, in words: what to use, what it gains and how sure that is, and what would gain more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forerun.config import SpeculationConfig
from forerun.core.theory import best_gamma, speedup
from forerun.tune.measure import Measured
from forerun.tune.predict import NOTHING, WORTH_IT, Prediction

GOOD_DRAFT: Final = (0.75, 0.1)
"""A draft model that was trained for its target: how often it is right, and what a guess costs in steps."""

WIDE: Final = 0.15
"""An interval of so much on either side makes a figure uncertain."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to use, what was predicted of everything, and what a real run of it gave on some of the prompts,
    of which `expected` was predicted.
    """

    best: Prediction
    predictions: Sequence[Prediction]
    measured: Measured | None
    costs: dict[int, float]
    num_prompts: int
    plain_speed: float
    expected: float = 1.0

    @property
    def config(self) -> SpeculationConfig:
        """What `forerun serve --speculation` takes."""
        return self.best.choice.config if self.worth_it else NOTHING.choice.config

    @property
    def worth_it(self) -> bool:
        """Whether to speculate at all: predicted, and not refuted by the real run."""
        return self.best is not NOTHING and (self.measured is None or self.measured.gain.value >= WORTH_IT)

    def paragraph(self) -> str:
        """All of it, for whoever reads only this."""
        return " ".join([*self._what(), *self._more()])

    def _what(self) -> list[str]:
        plain = (
            f"Plain decoding says {self.plain_speed:.1f} tokens a second on these {self.num_prompts} prompts."
        )
        if self.best is NOTHING:
            most = max((each.gain for each in self.predictions), default=1.0)
            return [
                f"Do not speculate. {plain} The best of {len(self.predictions)} choices would give"
                f" {most:.2f} times that, by prediction, which is not worth it."
            ]
        found = self.measured
        assert found is not None
        told = (
            f"a real run of {found.num} gave {found.gain.value:.2f} [{found.gain.low:.2f},"
            f" {found.gain.high:.2f}] times that ({self._before()})"
        )
        if not self.worth_it:
            return [f"Do not speculate. {plain} With {self.best.choice.name} {told}."]
        sure = max(found.gain.high / found.gain.value, found.gain.value / found.gain.low) - 1 <= WIDE
        words = f"{found.same} of {found.num} answers are the same, token for token"
        return [
            f"Use {self.best.choice.name}. {plain} With them {told};"
            f" {found.guesses_per_step:.1f} guesses a step, {found.tokens_per_step:.2f} tokens a step."
            f" {words[0].upper() + words[1:]}"
            + ("." if found.same == found.num else "; `forerun audit greedy` tells whether over near-ties.")
            + ("" if sure else " The interval is wide: more prompts would narrow it.")
        ]

    def _before(self) -> str:
        """What was known before the real run."""
        if self.best.measured:
            return f"a first try: {self.best.gain:.2f}"
        return f"predicted for these: {self.expected:.2f}, for all: {self.best.gain:.2f}"

    def _more(self) -> list[str]:
        """What would gain more."""
        now = self.best.gain if self.worth_it else 1.0
        told = []
        if self.worth_it and self.best.choice.config.share_outputs:
            told.append(
                "Answers resemble each other: a corpus of them (`forerun corpus build`) would do the same"
                " without anything passing from one request to another."
            )
        if not any(each.choice.config.draft_model for each in self.predictions):
            alpha, cost = GOOD_DRAFT
            row = (self.costs[2] - self.costs[1]) / self.costs[1]
            gain = speedup(alpha, best_gamma(alpha, cost + row), cost + row)
            if gain > 1.05 * now:
                told.append(
                    f"A draft model that is right {alpha:.0%} of the time and takes {cost:.0%} of a step"
                    f" would give {gain:.2f}, by theorem 3.8."
                )
        return told
