"""The recommendation: the configuration to use, its speedup with an interval, and further options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forerun.bench.ratios import RatioEstimate
from forerun.config import SpeculationConfig
from forerun.core.theory import best_gamma, speedup
from forerun.engines.vllm.flags import has_flag
from forerun.exactness import guarantee
from forerun.tune.measure import Measured
from forerun.tune.predict import MIN_SPEEDUP, NO_SPECULATION, Choice, Prediction

GOOD_DRAFT: Final = (0.75, 0.1)
"""Assumed acceptance rate of a draft model trained for its target, and its cost per draft token in steps."""

WIDE_INTERVAL: Final = 0.15
"""Half width of an interval, relative to the ratio, above which more prompts are suggested."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The best prediction, all predictions, and the measured run of the best one on some of the prompts, for
    which `predicted` was predicted. The servers ran with `vllm_flags`, in `dtype` as far as it is known.
    """

    best: Prediction
    predictions: Sequence[Prediction]
    measured: Measured | None
    costs: dict[int, float]
    num_prompts: int
    baseline_speed: float
    predicted: RatioEstimate = NO_SPECULATION.speedup
    vllm_flags: tuple[str, ...] = ()
    dtype: str | None = None

    @property
    def choice(self) -> Choice:
        """The recommended choice."""
        return self.best.choice if self.should_speculate else NO_SPECULATION.choice

    @property
    def config(self) -> SpeculationConfig:
        """The configuration for `forerun serve --speculation`."""
        return self.choice.config

    @property
    def should_speculate(self) -> bool:
        """Whether a speedup is predicted and the measured run does not refute it."""
        if self.best is NO_SPECULATION:
            return False
        return self.measured is None or self.measured.speedup.value >= MIN_SPEEDUP

    @property
    def is_invariant(self) -> bool:
        """Whether the servers ran in invariant mode."""
        return self.config.invariant or has_flag(self.vllm_flags, "--invariant")

    def headline(self) -> str:
        """The recommendation with the measured speedup."""
        advice = f"Use {self.best.choice.name}" if self.should_speculate else "Do not speculate"
        if self.measured is None:
            return advice
        ratio = self.measured.speedup
        return f"{advice}: {ratio} times the speed of non-speculative decoding{ratio.significance_note}"

    def paragraph(self) -> str:
        """The recommendation, the figures behind it, and options with a higher speedup."""
        return " ".join([self._advice(), *self._options()])

    def _advice(self) -> str:
        baseline = (
            f"Non-speculative decoding runs at {self.baseline_speed:.1f} tokens/s on these"
            f" {self.num_prompts} prompts."
        )
        if self.best is NO_SPECULATION:
            highest = max((each.speedup for each in self.predictions), key=lambda ratio: ratio.value)
            return (
                f"Do not speculate. {baseline} The best of {len(self.predictions)} choices has a predicted"
                f" speedup of {highest}, below the minimum of {MIN_SPEEDUP:.2f}."
            )
        found = self.measured
        assert found is not None
        measured = (
            f"measured on {found.num} prompts: {found.speedup} times that speed"
            f"{found.speedup.significance_note} ({self._prediction()})"
        )
        if not self.should_speculate:
            return f"Do not speculate. {baseline} {self.best.choice.name}, {measured}."
        identical = f"{found.num_identical} of {found.num} outputs are identical, token for token"
        if found.num_identical < found.num:
            identical += "; `forerun audit greedy` determines whether the others differ at near-ties"
        return (
            f"Use {self.best.choice.name}. {baseline} With it, {measured};"
            f" {found.draft_tokens_per_step:.1f} draft tokens and {found.tokens_per_step:.2f} tokens per"
            f" step. {identical}. Precision {guarantee(self.dtype, invariant=self.is_invariant)}."
            + (" The interval is wide: use more prompts to narrow it." if _is_wide(found.speedup) else "")
        )

    def _prediction(self) -> str:
        """The speedup that was known before the measured run."""
        if self.best.measured:
            return f"in a first run: {self.best.speedup}"
        return f"predicted for these prompts: {self.predicted}, for all: {self.best.speedup}"

    def _options(self) -> list[str]:
        """Sentences on options with a higher speedup, or with fewer requirements."""
        current = self.best.speedup.value if self.should_speculate else 1.0
        sentences = []
        if self.should_speculate and self.best.choice.config.share_outputs:
            sentences.append(
                "Outputs resemble each other: a corpus of them (`forerun corpus build`) would give the same"
                " speedup without sharing text between requests."
            )
        if not any(each.choice.config.draft_model for each in self.predictions):
            alpha, cost = GOOD_DRAFT
            row = (self.costs[2] - self.costs[1]) / self.costs[1]
            value = speedup(alpha, best_gamma(alpha, cost + row), cost + row)
            if value > 1.05 * current:
                sentences.append(
                    f"A draft model with an acceptance rate of {alpha:.0%} that costs {cost:.0%} of a step"
                    f" per draft token (assumed values) would give a speedup of {value:.1f} by theorem 3.8."
                )
        return sentences


def _is_wide(ratio: RatioEstimate) -> bool:
    return max(ratio.high / ratio.value, ratio.value / ratio.low) - 1 > WIDE_INTERVAL
