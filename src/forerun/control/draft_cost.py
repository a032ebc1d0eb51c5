"""Cost of a draft model, learnt online: its forward passes relative to target steps, and its prefill."""

from __future__ import annotations

from typing import Final

from forerun.control.step import Step
from forerun.control.step_cost import StepCost

PRIOR_PASS_SHARE: Final = 0.1
"""Prior for the duration of a draft model's forward pass, as a share of a target step."""

EMA_WEIGHT: Final = 0.1
"""Weight of a new observation in exponential moving averages."""


class DraftCost:
    """Seconds that each drafter takes per forward pass and per prefilled token."""

    def __init__(self, step_cost: StepCost) -> None:
        self._step_cost = step_cost
        self._pass_share: dict[str, float] = {}
        self._prefill: dict[str, tuple[float, float]] = {}

    def pass_seconds(self, step: Step, source: str) -> float:
        """Seconds of a draft model's forward pass over the requests of the step."""
        (target_seconds,) = step.predict_seconds(self._step_cost, len(step.slots))
        return self._pass_share.get(source, PRIOR_PASS_SHARE) * target_seconds

    def prefill_seconds(self, source: str, num_tokens: int) -> float:
        """Seconds that a drafter takes to prefill this many tokens; 0 before the first measurement."""
        seconds, tokens = self._prefill.get(source, (0.0, 1.0))
        return seconds / tokens * num_tokens

    def record(
        self, step: Step, source: str, num_passes: int, seconds: float, num_prefill_tokens: int
    ) -> None:
        """Record the seconds that a drafter took for `num_passes` forward passes and for its prefill.

        With prefill, the time beyond the expected time of the passes is the prefill's.
        """
        pass_seconds = self.pass_seconds(step, source)
        if num_passes and num_prefill_tokens:
            prefill_seconds, tokens = self._prefill.get(source, (0.0, 0.0))
            more = max(seconds - num_passes * pass_seconds, 0.0)
            self._prefill[source] = (
                (1 - EMA_WEIGHT) * prefill_seconds + more,
                (1 - EMA_WEIGHT) * tokens + num_prefill_tokens,
            )
        elif num_passes:
            known_share = self._pass_share.get(source, PRIOR_PASS_SHARE)
            share = seconds / num_passes / pass_seconds * known_share
            self._pass_share[source] = known_share + EMA_WEIGHT * (min(share, 2 * known_share) - known_share)
