"""The speculation controller: one per engine, called once per step.

    step = controller.begin_step(names, rows)                      # requests, rows without draft tokens
    mask = controller.should_draft(step)                           # requests for which a lookup pays
    lengths = controller.draft_lengths(step, source, max_lengths)  # draft lengths, before any sampling
    keep = controller.choose(step, candidates)                     # draft tokens to verify
    controller.record_step(step, accepted, seconds)                # outcome and duration

The controller never drops sampled draft tokens because of their values. `draft_lengths` fixes their number
before they exist. Only a step that was declared a baseline step beforehand leaves all of them out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.control.accounting import Accounting, Goodput
from forerun.control.candidates import ASSUMED_SURVIVAL, Candidates, leading_mask
from forerun.control.draft_cost import DraftCost
from forerun.control.exploration import ExplorationBudget, ExplorationSchedule
from forerun.control.planner import Planner
from forerun.control.step import Step
from forerun.control.step_cost import StepCost
from forerun.control.survival import SurvivalEstimator
from forerun.types import BoolArray, FloatArray, IntArray


class Controller:
    """Decides for one engine, from step costs and from the outcomes of earlier draft tokens.

    `Planner` makes the decisions of a step, `Accounting` records its outcome, and `ExplorationSchedule`
    decides when to explore.
    """

    def __init__(self, cost: StepCost, survival: SurvivalEstimator | None = None) -> None:
        self.cost = cost
        self.survival = SurvivalEstimator() if survival is None else survival
        self.exploration_budget = ExplorationBudget()
        self.accounting = Accounting(cost)
        self._draft_cost = DraftCost(cost)
        self._schedule = ExplorationSchedule(cost, self.exploration_budget)
        self._planner = Planner(
            cost, self._draft_cost, self.survival, self.accounting, self.exploration_budget, self._schedule
        )
        self._greedy, self._adaptive = np.zeros(0, dtype=bool), np.zeros(0, dtype=bool)

    def admit(self, name: str, *, greedy: bool, adaptive: bool = True) -> None:
        """Add a request. Requests that are not `adaptive` get every available draft token."""
        slot = self.survival.admit(name)
        if slot >= len(self._greedy):
            self._greedy = np.resize(self._greedy, 2 * slot + 8)
            self._adaptive = np.resize(self._adaptive, 2 * slot + 8)
        self._greedy[slot], self._adaptive[slot] = greedy, adaptive
        self._schedule.admit(slot)

    def forget(self, name: str) -> None:
        """Remove a finished request."""
        self.survival.forget(name)

    def begin_step(self, names: Sequence[str], rows: int, context: int = 0) -> Step:
        """Begin a step that decodes these requests, with its rows without draft tokens and its tokens of
        context.
        """
        slots = np.array([self.survival.slot(name) for name in names], dtype=np.int64)
        return Step(
            slots, self._greedy[slots], self._adaptive[slots], rows, context, self._schedule.next_is_baseline
        )

    def begin_step_ahead(self, names: Sequence[str], rows: int, context: int = 0) -> Step:
        """Begin a step while the step before is in flight: lookups overlap with that step, and the outcome of
        this one is recorded after the next one begins.
        """
        step = self.begin_step(names, rows, context)
        step.lookups_overlap = True
        if step.is_baseline:
            self._schedule.consume_baseline()
        return step

    def should_draft(self, step: Step) -> BoolArray:
        """Mask of the requests for which to look up draft tokens: where lookups pay, and requests that are
        not adaptive.
        """
        return self._planner.should_draft(step)

    def kind(self, step: Step, source: str, owner: int) -> int:
        """Calibration kind of a drafter's tokens for one request of the step."""
        return self.survival.kind(source, greedy=bool(step.greedy[owner]))

    def draft_lengths(
        self, step: Step, source: str, max_lengths: IntArray, num_prefill_tokens: int = 0
    ) -> IntArray:
        """Draft length per request for a drafter that runs one forward pass per depth.

        The drafter prefills `num_prefill_tokens` prompt tokens first. Where no length pays, one token per
        request may be drafted at the expense of the exploration budget.
        """
        return self._planner.draft_lengths(step, source, max_lengths, num_prefill_tokens)

    def record_accepted(
        self,
        step: Step,
        source: str,
        lengths: IntArray,
        num_accepted: IntArray,
        stated: FloatArray = ASSUMED_SURVIVAL,
    ) -> None:
        """Record how many tokens of each request's chain were accepted, to calibrate `draft_lengths`.

        The calibration starts from `stated`, the survival by depth for all requests or for each.
        """
        depth = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        stated = np.broadcast_to(stated, (len(lengths), stated.shape[-1]))
        kinds = [self.kind(step, source, owner) for owner in range(len(lengths))]
        chains = Candidates.from_chains(
            stated[np.repeat(np.arange(len(lengths)), lengths), depth],
            lengths,
            np.repeat(np.array(kinds, dtype=np.int64), lengths),
            np.zeros(len(lengths), dtype=bool),
        )
        self.calibrate(step, chains, leading_mask(lengths, num_accepted))

    def record_draft_time(
        self, step: Step, source: str, num_passes: int, seconds: float, num_prefill_tokens: int = 0
    ) -> None:
        """Record the seconds that a drafter took for `num_passes` forward passes and for its prefill."""
        step.draft_seconds += seconds
        self._draft_cost.record(step, source, num_passes, seconds, num_prefill_tokens)

    def choose(self, step: Step, candidates: Candidates) -> BoolArray:
        """Mask of the candidates to verify: those that raise throughput, and a few within the exploration
        budget.
        """
        return self._planner.choose(step, candidates)

    def plan_rows(self, step: Step, acceptance: FloatArray, max_rows: IntArray) -> IntArray:
        """Rows per request for draft tokens that are looked up later, given the probability of each possible
        row that it will be filled and accepted.
        """
        return self._planner.plan_rows(step, acceptance, max_rows)

    def survival_by_depth(self, step: Step, source: str, stated: FloatArray) -> FloatArray:
        """Survival of each request's draft tokens by depth, calibrated by what `record_accepted` recorded."""
        return self._planner.survival_by_depth(step, source, stated)

    def expected_gain(self, step: Step, candidates: Candidates) -> FloatArray:
        """Net value of each request's candidates in tokens: expected accepted tokens less the cost of their
        rows. Candidates that do not pay count as 0 unless they are mandatory.
        """
        return self._planner.expected_gain(step, candidates)

    def row_price(self, step: Step, num_rows: int) -> float:
        """The tokens that a step loses, in expectation, by each of `num_rows` rows for draft tokens."""
        return self._planner.row_price(step, num_rows)

    def estimate_survival(self, step: Step, candidates: Candidates) -> FloatArray:
        """Calibrated survival probability of each candidate."""
        return self._planner.estimate_survival(step, candidates)

    def record_step(
        self, step: Step, accepted: BoolArray, seconds: float, verified: BoolArray | None = None
    ) -> Goodput | None:
        """Record the outcome of a step.

        `accepted` covers the chosen draft tokens, and `verified` those of them that were verified (default:
        all). `seconds` includes lookups and drafting. Returns None if the step cannot be compared with a
        baseline step.
        """
        if len(accepted) != len(step.chosen):
            raise ValueError(
                f"got {len(accepted)} outcomes for {len(step.chosen)} chosen draft tokens; pass one for each"
            )
        seconds -= step.added_lookup_seconds
        if verified is not None and not verified.all():
            step.chosen, accepted = step.chosen.select(verified), accepted[verified]
        goodput = self.accounting.record_outcome(step, accepted, seconds)
        if self.cost.covers(step.num_rows):
            self.cost.update(
                step.num_rows, seconds - step.draft_seconds, step.context, sampled=step.has_sampled
            )
        if len(accepted):
            self.calibrate(step, step.chosen, accepted)
        self._schedule.end_step(step, seconds, self.accounting.speedup)
        return goodput

    def num_steps_without_lookup(self, step: Step) -> int:
        """Number of steps, if the requests of this one go on, in which nothing needs to be looked up or
        measured. To be asked after `record_step`.
        """
        if self._schedule.next_is_baseline or not step.adaptive.all():
            return 0
        return self.accounting.num_steps_without_lookup(step)

    def record_skipped(self, step: Step, num_steps: int, seconds: float) -> None:
        """Record steps like this one in which nothing was looked up; `seconds` is their time in all."""
        self.accounting.record_skipped(step, num_steps)
        self._schedule.skip(num_steps, seconds)

    def calibrate(self, step: Step, draft_tokens: Candidates, accepted: BoolArray) -> None:
        """Update the survival estimates by the outcomes of draft tokens."""
        self.survival.learn(
            draft_tokens.drafter_survival,
            draft_tokens.parents,
            draft_tokens.kinds,
            step.slots[draft_tokens.owners],
            accepted,
        )


def warm_up() -> None:
    """Compile the functions that a step needs, before the first request arrives."""
    controller = Controller(StepCost.default())
    controller.admit("warm-up", greedy=True, adaptive=False)
    controller.admit("adaptive", greedy=True)
    one, size = np.array([1]), np.array([0.5])
    for name in ("warm-up", "warm-up", "adaptive"):
        step = controller.begin_step([name], 1)
        controller.should_draft(step)
        controller.draft_lengths(step, "warm-up", one)
        kinds = np.array([controller.kind(step, "warm-up", 0)])
        keep = controller.choose(step, Candidates.from_chains(size, one, kinds, np.array([False])))
        sizes = keep.astype(np.int64)
        controller.record_step(step, leading_mask(sizes, one), 1.0, leading_mask(sizes, one))
