"""Accounting of finished steps: gains and costs of draft tokens and lookups, by class of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from forerun.control.lookup_backoff import LookupBackoff
from forerun.control.speedup import NetGain, SpeedupEstimate
from forerun.control.step import Step
from forerun.control.step_cost import StepCost
from forerun.core.jit import compiled
from forerun.types import BoolArray, FloatArray, IntArray

MAX_TIMING_DEVIATION: Final = 0.5
"""Relative deviation from the predicted step time beyond which a measured time is clipped as disturbed."""

MAX_LOOKUP_SHARE: Final = 0.1
"""Cap on the lookup time charged to a step, as a share of the step. Compilation and long prompts cause rare
slow lookups that backing off would not avoid.
"""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Tokens per second of a step: predicted, measured, and predicted for non-speculative decoding."""

    predicted: float
    measured: float
    baseline: float


class Accounting:
    """Net gain, lookup backoff and recent speedup, from the outcomes of steps.

    Pairs hold the value for sampled requests first, then the value for greedy requests. Draft tokens of
    requests that are not adaptive do not count.
    """

    def __init__(self, cost: StepCost) -> None:
        self.net_gain = (NetGain(), NetGain())
        self.lookup_backoff = (LookupBackoff(), LookupBackoff())
        self._cost = cost
        self._speedup = SpeedupEstimate()
        self._uncharged_draft_seconds = 0.0

    @property
    def speedup(self) -> float:
        """Recent speedup over non-speculative decoding, at least 1."""
        return self._speedup.value

    @property
    def is_losing(self) -> tuple[bool, bool]:
        """Per class: whether it loses time by speculation."""
        sampled, greedy = self.net_gain
        return sampled.is_losing, greedy.is_losing

    def record_outcome(self, step: Step, accepted: BoolArray, seconds: float) -> Goodput | None:
        """Record the outcome of a step that took `seconds` without its lookups.

        `accepted` covers the chosen draft tokens. Returns None if the step cannot be compared with a baseline
        step.
        """
        if not len(step.slots) or not self._cost.covers(step.num_rows):  # a prefill step
            self._uncharged_draft_seconds += step.draft_seconds
            return None
        num_tokens = len(step.slots) + np.count_nonzero(accepted)
        measured = num_tokens / (seconds + step.added_lookup_seconds)
        if not len(accepted) and not step.draft_seconds:  # a baseline step
            self._record_lookups(step, (0.0, 0.0), (0.0, 0.0), seconds)
            if step.adaptive.all():
                self._speedup.update(1.0, 1.0)
            return Goodput(measured, measured, measured)
        predicted, baseline = self._record_speculation(step, accepted, seconds)
        return Goodput(predicted, measured, baseline)

    def _record_speculation(self, step: Step, accepted: BoolArray, seconds: float) -> tuple[float, float]:
        """Record a step with draft tokens or drafting time. Returns the predicted goodput of the step and of
        non-speculative decoding.
        """
        num = len(step.slots)
        baseline, alone, speculative = step.predict_seconds(
            self._cost, step.baseline_rows, num, step.num_rows
        )
        token_seconds, expected = alone / num, speculative + step.draft_seconds
        clipped = min(
            max(seconds, (1 - MAX_TIMING_DEVIATION) * expected), (1 + MAX_TIMING_DEVIATION) * expected
        )
        if len(accepted):
            totals = totals_by_class(
                step.request_flags, step.chosen.owners, step.chosen.mandatory, accepted
            ).tolist()
            self._record_net_gain(step, totals, (clipped - baseline, baseline, token_seconds))
            row_seconds = (speculative - baseline) / len(accepted)
            self._record_lookups(step, (totals[0][3], totals[1][3]), (token_seconds, row_seconds), seconds)
        else:
            self._uncharged_draft_seconds += step.draft_seconds
        if step.adaptive.all():
            self._speedup.update((num + np.count_nonzero(accepted)) / num, clipped / baseline)
        return step.expected_tokens / expected, num / baseline

    def _record_net_gain(
        self, step: Step, totals: list[list[float]], times: tuple[float, float, float]
    ) -> None:
        """Record savings and costs of draft tokens per class of requests.

        A class is charged its share of the time beyond a baseline step, and of earlier drafting time that
        produced no verified draft tokens.
        """
        extra, baseline, token_seconds = times
        for net_gain, (share, num_chosen, num_accepted, _) in zip(self.net_gain, totals, strict=True):
            if num_chosen:
                cost = (extra + self._uncharged_draft_seconds) * num_chosen / len(step.chosen)
                net_gain.record(num_accepted * token_seconds, cost, baseline * share)
        self._uncharged_draft_seconds = 0.0

    def _record_lookups(
        self,
        step: Step,
        num_accepted: tuple[float, float],
        unit_seconds: tuple[float, float],
        seconds: float,
    ) -> None:
        """Record lookup time, expected savings and realized savings per class of requests, in seconds.

        `num_accepted` counts the accepted tokens that were looked up; `unit_seconds` are the seconds that an
        accepted token saves and that a row costs.
        """
        if step.lookup_enabled is None or step.is_baseline:
            return
        token_seconds, row_seconds = unit_seconds
        nums = (len(step.slots) - step.num_greedy, step.num_greedy)
        lookup = min(step.lookup_seconds, MAX_LOOKUP_SHARE * seconds)
        for backoff, num, enabled, (tokens, rows), accepted in zip(
            self.lookup_backoff, nums, step.lookup_enabled, step.expected_accepted, num_accepted, strict=True
        ):
            if num and enabled:
                expected, realized = (
                    each * token_seconds - rows * row_seconds for each in (tokens, accepted)
                )
                backoff.record_lookup(max(expected, 0.0), realized, lookup * num / len(step.slots))


@compiled
def totals_by_class(
    request_flags: tuple[BoolArray, BoolArray], owners: IntArray, mandatory: BoolArray, accepted: BoolArray
) -> FloatArray:
    """Per class (sampled, greedy): share of the requests, then among tokens of adaptive requests the number
    chosen, the number accepted, and the number accepted that were not mandatory.
    """
    greedy, adaptive = request_flags
    out = np.zeros((2, 4))
    for i in range(len(greedy)):
        out[int(greedy[i]), 0] += 1 / len(greedy)
    for i in range(len(owners)):
        if adaptive[owners[i]]:
            out[int(greedy[owners[i]]), 1] += 1
            out[int(greedy[owners[i]]), 2] += accepted[i]
            out[int(greedy[owners[i]]), 3] += accepted[i] and not mandatory[i]
    return out
