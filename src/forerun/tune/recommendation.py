"""What was found, in words: what to use, what it gains and how sure that is, and what would gain more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forerun.bench.summary import RatioEstimate
from forerun.config import SpeculationConfig
from forerun.core.theory import best_gamma, speedup
from forerun.tune.measure import Measured
from forerun.tune.predict import NOTHING, WORTH_IT, Prediction

GOOD_DRAFT: Final = (0.75, 0.1)
"""A draft model that was trained for its target: how often it is right, and what a guess costs in steps."""

WIDE: Final = 0.15
"""An interval of so much on either side makes a figure uncertain."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to use, what was predicted of everything, and what a real run of it gave on some of the prompts,
    of which `expected` was predicted. The servers ran with `vllm_flags`.
    """

    best: Prediction
    predictions: Sequence[Prediction]
    measured: Measured | None
    costs: dict[int, float]
    num_prompts: int
    plain_speed: float
    expected: RatioEstimate = NOTHING.gain
    vllm_flags: tuple[str, ...] = ()

    @property
    def config(self) -> SpeculationConfig:
        """What `forerun serve --speculation` takes."""
        return self.best.choice.config if self.worth_it else NOTHING.choice.config

    @property
    def worth_it(self) -> bool:
        """Whether to speculate at all: predicted, and not refuted by the real run."""
        return self.best is not NOTHING and (self.measured is None or self.measured.gain.value >= WORTH_IT)

    def headline(self) -> str:
        """The recommendation with the measured speedup."""
        advised = f"Use {self.best.choice.name}" if self.worth_it else "Do not speculate"
        if self.measured is None:
            return advised
        gain = self.measured.gain
        return f"{advised}: {gain} times the speed of non-speculative decoding{gain.verdict}"

    def paragraph(self) -> str:
        """The recommendation, the figures behind it, and what would gain more."""
        return " ".join([*self._what(), *self._more()])

    def _what(self) -> list[str]:
        baseline = (
            f"Non-speculative decoding runs at {self.plain_speed:.1f} tokens/s on these"
            f" {self.num_prompts} prompts."
        )
        if self.best is NOTHING:
            most = max((each.gain for each in self.predictions), key=lambda gain: gain.value)
            return [
                f"Do not speculate. {baseline} The best of {len(self.predictions)} choices has a predicted"
                f" speedup of {most}, below the {WORTH_IT:.2f} that is worth it."
            ]
        found = self.measured
        assert found is not None
        measured = (
            f"measured on {found.num} prompts: {found.gain} times that speed{found.gain.verdict}"
            f" ({self._before()})"
        )
        if not self.worth_it:
            return [f"Do not speculate. {baseline} {self.best.choice.name}, {measured}."]
        sure = max(found.gain.high / found.gain.value, found.gain.value / found.gain.low) - 1 <= WIDE
        same = f"{found.same} of {found.num} outputs are identical, token for token"
        return [
            f"Use {self.best.choice.name}. {baseline} With it, {measured};"
            f" {found.guesses_per_step:.1f} draft tokens and {found.tokens_per_step:.2f} tokens per step."
            f" {same}"
            + ("." if found.same == found.num else "; `forerun audit greedy` finds out whether by near-ties.")
            + ("" if sure else " The interval is wide: use more prompts to narrow it.")
        ]

    def _before(self) -> str:
        """What was known before the real run."""
        if self.best.measured:
            return f"in a first run: {self.best.gain}"
        return f"predicted for these prompts: {self.expected}, for all: {self.best.gain}"

    def _more(self) -> list[str]:
        """What would gain more."""
        now = self.best.gain.value if self.worth_it else 1.0
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
                    f"A draft model with an acceptance rate of {alpha:.0%} that costs {cost:.0%} of a step"
                    f" per draft token (assumed values) would give a speedup of {gain:.1f} by theorem 3.8."
                )
        return told
