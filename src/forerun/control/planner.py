"""Planning of a step: the requests that draft, their draft lengths, and the draft tokens to verify."""

from __future__ import annotations

import math

import numpy as np

from forerun.control.accounting import Accounting
from forerun.control.candidates import (
    ASSUMED_SURVIVAL,
    CandidateArrays,
    Candidates,
    add_ancestors,
    chain_arrays,
)
from forerun.control.cost_curve import interpolate
from forerun.control.draft_budget import MIN_RELATIVE_GAIN, TimeValue, draft_lengths, keep_most_likely
from forerun.control.draft_cost import DraftCost
from forerun.control.exploration import (
    ExplorationBudget,
    ExplorationSchedule,
    exploration_candidates,
    keep_exploratory,
)
from forerun.control.step import Step
from forerun.control.step_cost import StepCost
from forerun.control.survival import SurvivalEstimator
from forerun.core.jit import compiled
from forerun.types import BoolArray, FloatArray, IntArray


class Planner:
    """Decides from estimates of cost and survival, from the account of earlier steps, and within the
    exploration budget.
    """

    def __init__(
        self,
        cost: StepCost,
        draft_cost: DraftCost,
        survival: SurvivalEstimator,
        accounting: Accounting,
        budget: ExplorationBudget,
        schedule: ExplorationSchedule,
    ) -> None:
        self._cost, self._draft_cost, self._survival = cost, draft_cost, survival
        self._accounting, self._budget, self._schedule = accounting, budget, schedule

    def should_draft(self, step: Step) -> BoolArray:
        """Mask of the requests for which to look up draft tokens: where lookups pay, and requests that are
        not adaptive.
        """
        backoffs, guards = self._accounting.lookup_backoff, self._accounting.level(step).guards
        sampled, greedy = (
            backoff.should_look_up() and guard.should_look_up and not step.is_baseline
            for backoff, guard in zip(backoffs, guards, strict=True)
        )
        step.lookup_enabled = (sampled, greedy)
        return ~step.adaptive | (greedy if greedy == sampled else np.where(step.greedy, greedy, sampled))

    def draft_lengths(
        self, step: Step, source: str, max_lengths: IntArray, num_prefill_tokens: int
    ) -> IntArray:
        """Draft length per request for a drafter that prefills `num_prefill_tokens` tokens, then runs one
        forward pass per depth.
        """
        non_adaptive = np.where(step.adaptive, 0, max_lengths)
        adaptive = np.where(step.adaptive, max_lengths, 0)
        if step.is_baseline or not adaptive.any():
            return non_adaptive
        sampled_suspended, greedy_suspended = self._accounting.suspended(step)
        max_lengths = np.where(np.where(step.greedy, greedy_suspended, sampled_suspended), 0, adaptive)
        probabilities = self.survival_by_depth(step, source, ASSUMED_SURVIVAL[:1])[:, 0]
        curve, rate = self._time_value(step)
        pass_seconds = self._draft_cost.pass_seconds(step, source)
        lengths = draft_lengths(probabilities, max_lengths, step.baseline_rows, curve, rate, pass_seconds)
        if lengths.any():
            return non_adaptive + lengths
        first_tokens = np.minimum(max_lengths, 1)
        now, wide = (
            interpolate(*curve, float(step.baseline_rows + more)) for more in (0, first_tokens.sum())
        )
        gain = (float(probabilities[max_lengths > 0].sum()) - MIN_RELATIVE_GAIN * len(max_lengths)) / rate
        prefill_seconds = self._draft_cost.prefill_seconds(source, num_prefill_tokens)
        loss = max(pass_seconds + wide - now - gain, 0.0) + prefill_seconds
        return non_adaptive + (first_tokens if self._budget.spend(loss) else 0)

    def choose(self, step: Step, candidates: Candidates) -> BoolArray:
        """Mask of the candidates to verify: those that raise throughput, and a few within the exploration
        budget.
        """
        if not len(candidates):
            return np.zeros(0, dtype=bool)
        survivals = self.estimate_survival(step, candidates)
        selection = self._select(step, candidates, survivals, self._schedule.max_loss)
        return self._record_selection(step, candidates, survivals, selection)

    def plan_rows(self, step: Step, acceptance: FloatArray, max_rows: IntArray) -> IntArray:
        """Rows per request for draft tokens that are looked up later.

        `acceptance` has, request after request, the probability of each possible row that it will be filled
        and accepted; it never rises within a request. The output shows the outcome of a draft without rows
        too, so no row is exploratory.
        """
        rows = Candidates.from_acceptance(acceptance, max_rows)
        selection = self._select(step, rows, acceptance, max_loss=-math.inf)
        keep = self._record_selection(step, rows, acceptance, selection)
        return np.bincount(rows.owners[keep], minlength=len(max_rows))

    def _select(
        self,
        step: Step,
        candidates: Candidates,
        survivals: FloatArray,
        max_loss: float,
    ) -> tuple[BoolArray, FloatArray, float]:
        """Select candidates by these survivals, exploratory ones up to a loss of `max_loss` seconds."""
        return select_candidates(
            candidates.arrays,
            survivals,
            step.request_flags,
            (step.baseline_rows, step.is_baseline),
            self._time_value(step),
            self._accounting.suspended(step),
            max_loss,
            self._schedule.last_speculated(step.slots),
        )

    def _record_selection(
        self,
        step: Step,
        candidates: Candidates,
        survivals: FloatArray,
        selection: tuple[BoolArray, FloatArray, float],
    ) -> BoolArray:
        """Record the selected candidates in the step, and pay for exploratory ones; returns the mask."""
        keep, expected_accepted, loss = selection
        self._budget.spend(loss)
        step.expected_tokens += float(survivals[keep].sum())
        step.expected_accepted = expected_accepted.tolist()
        step.chosen = candidates.select(keep)
        self._schedule.record_speculated(step.slots[step.chosen.owners])
        return keep

    def expected_gain(self, step: Step, candidates: Candidates) -> FloatArray:
        """Net value of each request's candidates in tokens: expected accepted tokens less the cost of their
        rows. Candidates that do not pay count as 0 unless they are mandatory, since `choose` would leave them
        out.
        """
        more = len(step.slots)
        if not len(candidates):
            return np.zeros(more)
        (knots, seconds), rate = self._time_value(step)
        now, wide = (interpolate(knots, seconds, float(step.baseline_rows + each)) for each in (0, more))
        net = self.estimate_survival(step, candidates) - rate * (wide - now) / more
        totals = np.zeros(more)
        np.add.at(totals, candidates.owners, np.where(candidates.mandatory, net, np.maximum(net, 0.0)))
        return totals

    def row_price(self, step: Step, num_rows: int) -> float:
        """The tokens that a step loses, in expectation, by each of `num_rows` rows for draft tokens."""
        (knots, seconds), rate = self._time_value(step)
        now, wide = (interpolate(knots, seconds, float(step.baseline_rows + each)) for each in (0, num_rows))
        return float(rate * (wide - now) / max(num_rows, 1))

    def estimate_survival(self, step: Step, candidates: Candidates) -> FloatArray:
        """Calibrated survival probability of each candidate."""
        return self._survival.estimate(
            candidates.drafter_survival, candidates.parents, candidates.kinds, step.slots[candidates.owners]
        )

    def survival_by_depth(self, step: Step, source: str, stated: FloatArray) -> FloatArray:
        """Survival of each request's draft tokens by depth, before the drafter states any.

        The calibration starts from `stated`, the survival by depth for all requests or for each.
        """
        num, depth = len(step.slots), stated.shape[-1]
        kinds = np.array([self._survival.kind(source, greedy=greedy) for greedy in (False, True)])
        parents, owners = chain_arrays(np.full(num, depth))
        survivals = self._survival.estimate(
            np.broadcast_to(stated, (num, depth)).ravel(),
            parents,
            kinds[step.greedy.astype(np.int64)][owners],
            step.slots[owners],
        )
        return survivals.reshape(num, depth)

    def _time_value(self, step: Step) -> TimeValue:
        """Cost curve of the step, and the value of a second in tokens: the throughput of non-speculative
        decoding of these requests alone, without prefill, times the recent speedup.
        """
        curve = self._cost.upper_curve(step.baseline_rows, step.context, sampled=step.has_sampled)
        baseline = interpolate(*curve, float(len(step.slots)))
        return curve, self._accounting.speedup * len(step.slots) / baseline


@compiled
def select_candidates(
    candidates: CandidateArrays,
    survivals: FloatArray,
    request_flags: tuple[BoolArray, BoolArray],
    step: tuple[int, bool],
    time_value: TimeValue,
    suspended: tuple[bool, bool],
    max_loss: float,
    last_speculated: IntArray,
) -> tuple[BoolArray, FloatArray, float]:
    """Select the candidates to verify in a step with these rows, which may be a baseline step.

    Returns the mask; per class (sampled, greedy), the expected accepted tokens and the number of candidates
    selected because they pay; and the expected loss in seconds of exploratory candidates. Classes that are
    `suspended` get none. Other requests without any may get one exploratory candidate, least recently
    speculated requests first, up to a loss of `max_loss` seconds.
    """
    _, parents, _, owners, mandatory = candidates
    greedy, adaptive = request_flags
    rows, baseline = step
    keep, eligible = np.empty(len(owners), dtype=np.bool_), np.empty(len(owners), dtype=np.bool_)
    any_adaptive = False
    for i in range(len(owners)):
        keep[i] = not adaptive[owners[i]] or (mandatory[i] and not baseline)
        any_adaptive = any_adaptive or adaptive[owners[i]]
    add_ancestors(keep, parents)
    expected_accepted, loss = np.zeros((2, 2)), 0.0
    if any_adaptive and not baseline:
        for i in range(len(owners)):
            eligible[i] = not keep[i] and not suspended[int(greedy[owners[i]])]
        keep_most_likely(keep, survivals, eligible, len(greedy), rows, time_value)
        for i in range(len(owners)):
            if keep[i] and eligible[i]:
                expected_accepted[int(greedy[owners[i]]), 0] += survivals[i]
                expected_accepted[int(greedy[owners[i]]), 1] += 1
        first_tokens = exploration_candidates(keep, eligible, candidates, last_speculated)
        loss = keep_exploratory(keep, first_tokens, survivals, rows, time_value, max_loss)
    return keep, expected_accepted, loss
