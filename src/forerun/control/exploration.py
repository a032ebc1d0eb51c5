"""Exploration within a time budget: baseline steps, and draft tokens that are not expected to pay.

Estimates of options that are not taken go stale. A baseline step measures the cost of non-speculative
decoding while every step speculates; an exploratory draft token measures acceptance while none pays.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from forerun.control.candidates import CandidateArrays
from forerun.control.cost_curve import interpolate
from forerun.control.draft_budget import TimeValue
from forerun.control.step import Step
from forerun.control.step_cost import StepCost
from forerun.core.jit import compiled
from forerun.types import BoolArray, FloatArray, IntArray

EXPLORATION_SHARE: Final = 0.005
"""Share of the total time that exploration may take."""

INITIAL_BUDGET_STEPS: Final = 0.5
"""Initial exploration budget, in steps: uncertainty is largest at the start."""

MAX_BUDGET_STEPS: Final = 2.0
"""Cap on the exploration budget, in steps."""

MIN_BASELINE_INTERVAL: Final = 8
RESERVE_BASELINE_AFTER: Final = 100
"""Speculative steps after which a baseline step is measured if the exploration budget covers it: where
speculation gains little, such a step costs little. From RESERVE_BASELINE_AFTER on, the whole exploration
budget is reserved for it.
"""


class ExplorationBudget:
    """Seconds available for exploration: an initial amount, plus a share of every step."""

    __slots__ = ("seconds", "spent", "total")

    def __init__(self) -> None:
        self.seconds = self.spent = self.total = 0.0

    def accrue(self, step_seconds: float) -> None:
        """Add the share of a step."""
        if not self.total:
            self.seconds = INITIAL_BUDGET_STEPS * step_seconds
        self.total += step_seconds
        self.seconds = min(self.seconds + EXPLORATION_SHARE * step_seconds, MAX_BUDGET_STEPS * step_seconds)

    def spend(self, seconds: float) -> bool:
        """Spend seconds if the budget covers them; returns whether it does."""
        if seconds > self.seconds:
            return False
        self.seconds -= max(seconds, 0.0)
        self.spent += max(seconds, 0.0)
        return True


class ExplorationSchedule:
    """Which step is a baseline step, and which requests explore first."""

    def __init__(self, cost: StepCost, budget: ExplorationBudget) -> None:
        self.next_is_baseline = False
        self._cost, self._budget = cost, budget
        self._num_steps = self._steps_since_baseline = 0
        self._last_speculated = np.zeros(0, dtype=np.int64)

    def admit(self, slot: int) -> None:
        """Queue a new request behind those that wait for exploration."""
        if slot >= len(self._last_speculated):
            self._last_speculated = np.resize(self._last_speculated, 2 * slot + 8)
        self._last_speculated[slot] = self._num_steps

    def last_speculated(self, slots: IntArray) -> IntArray:
        """Number of the step in which each request last had draft tokens, or was admitted."""
        return self._last_speculated[slots]

    def record_speculated(self, slots: IntArray) -> None:
        """Record that these requests have draft tokens in the current step."""
        self._last_speculated[slots] = self._num_steps

    @property
    def max_loss(self) -> float:
        """Seconds that exploratory draft tokens may cost: none while the budget is reserved for a baseline
        step.
        """
        is_reserved = self._steps_since_baseline >= RESERVE_BASELINE_AFTER
        return -math.inf if is_reserved else self._budget.seconds

    def consume_baseline(self) -> None:
        """Plan no second baseline step while the first one is in flight."""
        self.next_is_baseline, self._steps_since_baseline = False, 0

    def skip(self, num_steps: int, seconds: float) -> None:
        """Add the shares of steps without draft tokens that took `seconds` in all."""
        self._num_steps += num_steps
        self._steps_since_baseline = 0
        for _ in range(num_steps):
            self._budget.accrue(seconds / num_steps)

    def end_step(self, step: Step, seconds: float, speedup: float) -> None:
        """Add a step's share to the budget, and decide whether the next step is a baseline step.

        `speedup` is the recent speedup as measured, at least 1, which a baseline step forgoes. Where
        speculation gains nothing, baseline steps are free, and the comparison is soon certain.
        """
        self._num_steps += 1
        if not len(step.slots):
            return
        self._budget.accrue(seconds)
        speculated = len(step.chosen) > 0 or step.draft_seconds > 0
        self._steps_since_baseline = (
            self._steps_since_baseline + 1 if speculated and not step.is_baseline else 0
        )
        self.next_is_baseline = False
        if self._steps_since_baseline >= MIN_BASELINE_INTERVAL:
            (baseline,) = step.predict_seconds(self._cost, step.baseline_rows)
            self.next_is_baseline = self._budget.spend(baseline * (1 - 1 / speedup))


@compiled
def exploration_candidates(
    keep: BoolArray, eligible: BoolArray, candidates: CandidateArrays, last_speculated: IntArray
) -> IntArray:
    """First eligible candidate of each request that has none selected, least recently speculated requests
    first.
    """
    _, parents, _, owners, _ = candidates
    first_tokens = np.full(len(last_speculated), -1)
    for i in range(len(owners) - 1, -1, -1):
        if parents[i] < 0 and eligible[i]:
            first_tokens[owners[i]] = i
    for i in range(len(owners)):
        if keep[i]:
            first_tokens[owners[i]] = -1
    waiting = np.flatnonzero(first_tokens >= 0)
    return first_tokens[waiting[np.argsort(last_speculated[waiting], kind="mergesort")]]


@compiled
def keep_exploratory(
    keep: BoolArray,
    candidates: IntArray,
    survivals: FloatArray,
    rows: int,
    time_value: TimeValue,
    budget: float,
) -> float:
    """Add to the mask as many of the candidates, in order, as the exploration budget covers. Returns their
    expected loss in seconds.
    """
    (knots, seconds), rate = time_value
    rows += keep.sum()
    baseline, max_loss, expected_accepted, num, cost = interpolate(knots, seconds, rows), -np.inf, 0.0, 0, 0.0
    for node in candidates:
        expected_accepted += survivals[node]
        loss = interpolate(knots, seconds, rows + num + 1) - baseline - expected_accepted / rate
        max_loss = max(max_loss, loss)
        if max_loss > budget:
            break
        num, cost = num + 1, loss
    for node in candidates[:num]:
        keep[node] = True
    return cost
