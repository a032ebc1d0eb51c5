"""Accounting of finished steps: gains and costs of draft tokens and lookups, by class of requests.

Draft tokens are charged the measured time of their step beyond that of a step without any. The latter is
measured in baseline steps of about as many requests, and taken from the cost curve before the first of these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from forerun.control.drafting_guard import DraftingGuard
from forerun.control.lookup_backoff import LookupBackoff
from forerun.control.relative_times import RelativeTimes
from forerun.control.speedup import SpeedupEstimate
from forerun.control.step import Step
from forerun.control.step_cost import StepCost
from forerun.core.jit import compiled
from forerun.types import BoolArray, FloatArray, IntArray

BASELINE_SAMPLING: Final = 4
"""Of the steps that happen to have no drafts, one in this many is measured; planned baseline steps all are.
"""

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


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """What was measured in steps with about the same number of requests: times of steps without and with
    drafts, relative to the cost curve, and the guards of the classes.
    """

    baseline: RelativeTimes = field(default_factory=RelativeTimes)
    speculative: RelativeTimes = field(default_factory=RelativeTimes)
    guards: tuple[DraftingGuard, DraftingGuard] = field(
        default_factory=lambda: (DraftingGuard(), DraftingGuard())
    )


class Accounting:
    """Drafting guards, lookup backoff and recent speedup, from the outcomes of steps.

    Pairs hold the value for sampled requests first, then the value for greedy requests. Draft tokens of
    requests that are not adaptive do not count.
    """

    def __init__(self, cost: StepCost) -> None:
        self.lookup_backoff = (LookupBackoff(), LookupBackoff())
        self._cost = cost
        self._levels: defaultdict[tuple[bool, int], LoadLevel] = defaultdict(LoadLevel)
        self._steps_since_measured = 0
        self._speedup = SpeedupEstimate()
        self._uncharged_draft_seconds = 0.0

    @property
    def speedup(self) -> float:
        """Recent speedup over non-speculative decoding, at least 1."""
        return self._speedup.value

    def level(self, step: Step) -> LoadLevel:
        """The measurements of steps like this one: up to twice as many requests, and sampled ones or none."""
        return self._levels[step.has_sampled, len(step.slots).bit_length()]

    def suspended(self, step: Step) -> tuple[bool, bool]:
        """Per class: whether its drafting is suspended at the load of this step."""
        sampled, greedy = self.level(step).guards
        return sampled.is_suspended, greedy.is_suspended

    def num_steps_without_lookup(self, step: Step) -> int:
        """Number of steps, if the requests of this one go on, before the next lookup for one of them."""
        return min(
            (
                max(backoff.num_steps_without, guard.num_steps_without_lookup)
                for backoff, guard, num in zip(
                    self.lookup_backoff, self.level(step).guards, step.num_by_class, strict=True
                )
                if num
            ),
            default=0,
        )

    def record_matches(self, step: Step, counts: Sequence[tuple[int, int]]) -> None:
        """Record for each class the first draft tokens that were looked up, and those that the output has."""
        for guard, (num_lookups, num_matches) in zip(self.level(step).guards, counts, strict=True):
            if num_lookups:
                guard.record_matches(num_lookups, num_matches)

    def record_skipped(self, step: Step, num_steps: int) -> None:
        """Record steps like this one in which nothing was looked up, and which were not timed one by one."""
        (baseline,) = step.predict_seconds(self._cost, len(step.slots))
        for backoff in self.lookup_backoff:
            backoff.skip(num_steps)
        for _ in range(num_steps):
            self._record_gains(step, ((0.0, 0.0), (0.0, 0.0)), (0.0, baseline, 0.0))
            self._speedup.update(1.0, 1.0)
        self._steps_since_measured += num_steps

    def record_outcome(self, step: Step, accepted: BoolArray, seconds: float) -> Goodput | None:
        """Record the outcome of a step that took `seconds` without its lookups.

        `accepted` covers the chosen draft tokens. Returns None if the step cannot be compared with a baseline
        step.
        """
        if not len(step.slots) or not self._cost.covers(step.num_rows):  # a prefill step
            self._uncharged_draft_seconds += step.draft_seconds
            return None
        num_accepted = np.count_nonzero(accepted) if len(accepted) else 0
        measured = (len(step.slots) + num_accepted) / (seconds + step.added_lookup_seconds)
        if not len(accepted) and not step.draft_seconds:  # a baseline step
            self._record_lookups(step, (0.0, 0.0), (0.0, 0.0), seconds)
            self._record_baseline(step, seconds)
            self._record_gains(step, ((0.0, 0.0), (0.0, 0.0)), (0.0, seconds, 0.0))
            if step.adaptive.all():
                self._speedup.update(1.0, 1.0)
            return Goodput(measured, measured, measured)
        predicted, baseline = self._record_speculation(step, accepted, seconds)
        return Goodput(predicted, measured, baseline)

    def _record_baseline(self, step: Step, seconds: float) -> None:
        """Record the time of a step without drafts and without prefill."""
        self._steps_since_measured += 1
        is_measured = step.is_baseline or self._steps_since_measured >= BASELINE_SAMPLING
        if is_measured and not step.num_prefill_rows:
            self._steps_since_measured = 0
            (predicted,) = step.predict_seconds(self._cost, step.baseline_rows)
            self.level(step).baseline.record(seconds, predicted)

    def _record_speculation(self, step: Step, accepted: BoolArray, seconds: float) -> tuple[float, float]:
        """Record a step with draft tokens or drafting time. Returns the predicted goodput of the step and the
        goodput of non-speculative decoding.
        """
        num, level = len(step.slots), self.level(step)
        baseline, alone, speculative = step.predict_seconds(
            self._cost, step.baseline_rows, num, step.num_rows
        )
        row_seconds = (speculative - baseline) / max(len(accepted), 1)
        expected = speculative + step.draft_seconds
        baseline, token_seconds = baseline * level.baseline.factor, alone * level.baseline.factor / num
        if not step.num_prefill_rows:
            level.speculative.record(seconds, expected)
        clipped = level.speculative.clip(seconds, expected)
        if len(accepted):
            totals = totals_by_class(
                step.request_flags, step.chosen.owners, step.chosen.mandatory, accepted
            ).tolist()
            extra = clipped - baseline + min(step.added_lookup_seconds, MAX_LOOKUP_SHARE * baseline)
            times = (extra + self._uncharged_draft_seconds, baseline, token_seconds)
            self._record_gains(step, [(each[0], each[1]) for each in totals], times)
            self._uncharged_draft_seconds = 0.0
            self._record_lookups(step, (totals[0][2], totals[1][2]), (token_seconds, row_seconds), seconds)
        else:
            self._uncharged_draft_seconds += step.draft_seconds
        if step.adaptive.all():
            self._speedup.update((num + np.count_nonzero(accepted)) / num, clipped / baseline)
        return step.expected_tokens / expected, num / baseline

    def _record_gains(
        self, step: Step, totals: Sequence[tuple[float, float]], times: tuple[float, float, float]
    ) -> None:
        """Record with the guard of each class what its draft tokens saved and cost.

        `totals` are the chosen and the accepted draft tokens of the classes, `times` the seconds beyond a
        baseline step, of a baseline step, and per token of one. A class is charged its share of the time
        beyond a baseline step: lookups and drafting included, also earlier drafting that came to nothing.
        """
        extra, baseline, token_seconds = times
        level = self.level(step)
        for guard, num, (num_chosen, num_accepted) in zip(
            level.guards, step.num_by_class, totals, strict=True
        ):
            if num:
                cost = extra * num_chosen / len(step.chosen) if num_chosen else 0.0
                share = baseline * num / len(step.slots)
                guard.record(num_accepted * token_seconds, cost, share, level.baseline.standard_error)

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
        lookup = min(step.lookup_seconds, MAX_LOOKUP_SHARE * seconds)
        for backoff, num, enabled, (tokens, rows), accepted in zip(
            self.lookup_backoff,
            step.num_by_class,
            step.lookup_enabled,
            step.expected_accepted,
            num_accepted,
            strict=True,
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
    """Per class (sampled, greedy), among draft tokens of adaptive requests: the number chosen, the number
    accepted, and the number accepted that were not mandatory.
    """
    greedy, adaptive = request_flags
    out = np.zeros((2, 3))
    for i in range(len(owners)):
        if adaptive[owners[i]]:
            out[int(greedy[owners[i]]), 0] += 1
            out[int(greedy[owners[i]]), 1] += accepted[i]
            out[int(greedy[owners[i]]), 2] += accepted[i] and not mandatory[i]
    return out
