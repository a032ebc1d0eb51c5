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

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from forerun.control.candidates import (
    ASSUMED_ACCEPTANCE,
    CandidateArrays,
    Candidates,
    add_ancestors,
    leading_mask,
)
from forerun.control.draft_budget import (
    MIN_RELATIVE_GAIN,
    TimeValue,
    draft_lengths,
    keep_exploratory,
    keep_most_likely,
)
from forerun.control.exploration import ExplorationBudget, LookupBackoff, NetGain
from forerun.control.step_cost import StepCost, interpolate
from forerun.control.survival import SurvivalEstimator
from forerun.core.jit import compiled
from forerun.types import BoolArray, FloatArray, IntArray

MIN_BASELINE_INTERVAL: Final = 8
RESERVE_BASELINE_AFTER: Final = 100
"""Speculative steps after which a baseline step is measured if the exploration budget covers it: where
speculation gains little, such a step costs little. From RESERVE_BASELINE_AFTER on, the whole exploration
budget is reserved for it.
"""

PRIOR_DRAFT_PASS_SHARE: Final = 0.1
"""Prior for the duration of a draft model's forward pass, as a share of a target step."""

MAX_TIMING_DEVIATION: Final = 0.5
"""Relative deviation from the predicted step time beyond which a measured time is clipped as disturbed."""

MAX_LOOKUP_SHARE: Final = 0.1
"""Cap on the lookup time charged to a step, as a share of the step. Compilation and long prompts cause rare
slow lookups that backing off would not avoid.
"""

EMA_WEIGHT: Final = 0.1
"""Weight of a new observation in exponential moving averages."""


@dataclass(slots=True)
class Step:
    """A step in progress: its requests, its cost without draft tokens, and the decisions so far.

    Pairs hold the value for sampled requests first, then the value for greedy requests.
    """

    slots: IntArray
    greedy: BoolArray
    adaptive: BoolArray
    baseline_rows: int
    context: int
    is_baseline: bool
    chosen: Candidates
    expected_tokens: float
    num_greedy: int
    draft_seconds: float = 0.0
    lookup_seconds: float = 0.0
    lookup_enabled: tuple[bool, bool] | None = None
    expected_accepted: Sequence[Sequence[float]] = ((0.0, 0.0), (0.0, 0.0))
    accepted_lookups: tuple[float, float] = (0.0, 0.0)
    """Per class: whether lookups are enabled; the expected accepted tokens among the candidates chosen
    because they pay, and the number of these candidates; and the number of accepted tokens that were looked
    up.
    """

    @property
    def has_sampled(self) -> bool:
        """Whether any request of the step samples its tokens."""
        return self.num_greedy < len(self.slots)

    @property
    def request_arrays(self) -> tuple[IntArray, BoolArray, BoolArray]:
        """Slots, greedy flags and adaptive flags of the requests."""
        return self.slots, self.greedy, self.adaptive

    @property
    def num_prefill_rows(self) -> int:
        """Rows that belong to prompts."""
        return max(0, self.baseline_rows - len(self.slots))

    @property
    def num_rows(self) -> int:
        """Rows of the forward pass, draft tokens included."""
        return self.baseline_rows + len(self.chosen)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Tokens per second of a step: predicted, measured, and predicted for non-speculative decoding."""

    predicted: float
    measured: float
    baseline: float


class SpeedupEstimate:
    """Recent speedup over non-speculative decoding: a ratio of moving averages of tokens and time."""

    __slots__ = ("_num_steps", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._num_steps, self._tokens, self._seconds = 1, 1.0, 1.0

    def update(self, tokens: float, seconds: float) -> None:
        """Record a step's tokens and seconds, both relative to a baseline step."""
        self._num_steps += 1
        weight = max(EMA_WEIGHT, 1 / self._num_steps)  # the first steps are averaged with equal weights
        self._tokens += weight * (tokens - self._tokens)
        self._seconds += weight * (seconds - self._seconds)

    @property
    def value(self) -> float:
        """At least 1, because the controller can always choose non-speculative decoding."""
        return max(self._tokens / self._seconds, 1.0)


class Controller:
    """Decides for one engine, from step costs and from the outcomes of earlier draft tokens."""

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost
        self.survival = SurvivalEstimator()
        self.exploration_budget = ExplorationBudget()
        self.net_gain = {greedy: NetGain() for greedy in (True, False)}
        self.lookup_backoff = (LookupBackoff(), LookupBackoff())
        self._speedup = SpeedupEstimate()
        self._draft_pass_share: dict[str, float] = {}
        self._draft_prefill: dict[str, tuple[float, float]] = {}
        self._uncharged_draft_seconds = 0.0
        self._greedy, self._adaptive = np.zeros(0, dtype=bool), np.zeros(0, dtype=bool)
        self._last_speculated = np.zeros(0, dtype=np.int64)
        self._num_steps = self._steps_since_baseline = 0
        self._baseline_next = False

    def admit(self, name: str, *, greedy: bool, adaptive: bool = True) -> None:
        """Add a request. Requests that are not `adaptive` get every available draft token."""
        slot = self.survival.admit(name)
        if slot >= len(self._last_speculated):
            for column in ("_greedy", "_adaptive", "_last_speculated"):
                setattr(self, column, np.resize(getattr(self, column), 2 * slot + 8))
        self._greedy[slot], self._adaptive[slot] = greedy, adaptive
        self._last_speculated[slot] = self._num_steps

    def forget(self, name: str) -> None:
        """Remove a finished request."""
        self.survival.forget(name)

    def begin_step(self, names: Sequence[str], rows: int, context: int = 0) -> Step:
        """Begin a step that decodes these requests, with its rows without draft tokens and its tokens of
        context.
        """
        slots = np.array([self.survival.slot(name) for name in names], dtype=np.int64)
        greedy = self._greedy[slots]
        return Step(
            slots,
            greedy,
            self._adaptive[slots],
            rows,
            context,
            self._baseline_next,
            Candidates.empty(),
            float(len(names)),
            int(np.count_nonzero(greedy)),
        )

    def should_draft(self, step: Step) -> BoolArray:
        """Mask of the requests for which to look up draft tokens: where lookups pay, and requests that are
        not adaptive.
        """
        sampled, greedy = (
            backoff.should_look_up() and not step.is_baseline for backoff in self.lookup_backoff
        )
        step.lookup_enabled = (sampled, greedy)
        return ~step.adaptive | (greedy if greedy == sampled else np.where(step.greedy, greedy, sampled))

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
        non_adaptive = np.where(step.adaptive, 0, max_lengths)
        adaptive = np.where(step.adaptive, max_lengths, 0)
        if step.is_baseline or not adaptive.any():
            return non_adaptive
        max_lengths = np.where(self._is_suspended(step.greedy), 0, adaptive)
        kinds = np.array([self.survival.kind(source, greedy=greedy) for greedy in (False, True)])
        root = np.full(len(max_lengths), -1)
        probabilities = self.survival.estimate(
            np.full(len(max_lengths), ASSUMED_ACCEPTANCE),
            root,
            kinds[step.greedy.astype(np.int64)],
            step.slots,
        )
        curve, rate = self._time_value(step)
        pass_seconds = self._draft_pass_seconds(step, source)
        budgets = draft_lengths(probabilities, max_lengths, step.baseline_rows, curve, rate, pass_seconds)
        if budgets.any():
            return non_adaptive + budgets
        # Suspended classes explore only if all classes are suspended.
        first_tokens = np.minimum(max_lengths if max_lengths.any() else adaptive, 1)
        now, wide = (
            interpolate(*curve, float(step.baseline_rows + more)) for more in (0, first_tokens.sum())
        )
        gain = (float(probabilities[max_lengths > 0].sum()) - MIN_RELATIVE_GAIN * len(max_lengths)) / rate
        prefill_seconds = self._prefill_seconds_per_token(source) * num_prefill_tokens
        loss = max(pass_seconds + wide - now - gain, 0.0) + prefill_seconds
        return non_adaptive + (first_tokens if self.exploration_budget.spend(loss) else 0)

    def record_accepted(self, step: Step, source: str, lengths: IntArray, num_accepted: IntArray) -> None:
        """Record how many tokens of each request's chain were accepted, to calibrate `draft_lengths`."""
        depth = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        kinds = [self.kind(step, source, owner) for owner in range(len(lengths))]
        self.survival.learn(
            np.power(ASSUMED_ACCEPTANCE, depth + 1.0),
            np.where(depth == 0, -1, np.arange(len(depth)) - 1),
            np.repeat(np.array(kinds, dtype=np.int64), lengths),
            step.slots[owners],
            depth < num_accepted[owners],
        )

    def record_draft_time(
        self, step: Step, source: str, num_passes: int, seconds: float, num_prefill_tokens: int = 0
    ) -> None:
        """Record the seconds that a drafter took for `num_passes` forward passes and for its prefill."""
        step.draft_seconds += seconds
        pass_seconds = self._draft_pass_seconds(step, source)
        if num_passes and num_prefill_tokens:
            prefill_seconds, tokens = self._draft_prefill.get(source, (0.0, 0.0))
            more = max(seconds - num_passes * pass_seconds, 0.0)
            self._draft_prefill[source] = (
                (1 - EMA_WEIGHT) * prefill_seconds + more,
                (1 - EMA_WEIGHT) * tokens + num_prefill_tokens,
            )
        elif num_passes:
            known_share = self._draft_pass_share.get(source, PRIOR_DRAFT_PASS_SHARE)
            share = seconds / num_passes / pass_seconds * known_share
            self._draft_pass_share[source] = known_share + EMA_WEIGHT * (
                min(share, 2 * known_share) - known_share
            )

    def _prefill_seconds_per_token(self, source: str) -> float:
        """Seconds that a drafter takes to prefill one token."""
        prefill_seconds, tokens = self._draft_prefill.get(source, (0.0, 1.0))
        return prefill_seconds / tokens

    def _draft_pass_seconds(self, step: Step, source: str) -> float:
        """Seconds of a draft model's forward pass over the requests of the step."""
        (alone,) = self._step_seconds(step, len(step.slots))
        return self._draft_pass_share.get(source, PRIOR_DRAFT_PASS_SHARE) * alone

    def choose(self, step: Step, candidates: Candidates) -> BoolArray:
        """Mask of the candidates to verify: those that raise throughput, and a few within the exploration
        budget.
        """
        if not len(candidates):
            return np.zeros(0, dtype=bool)
        survivals = self.estimate_survival(step, candidates)
        time_value = self._time_value(step)
        suspended = (self.net_gain[False].is_losing, self.net_gain[True].is_losing)
        reserved = self._steps_since_baseline >= RESERVE_BASELINE_AFTER
        budget = -math.inf if reserved else self.exploration_budget.seconds
        now = (step.baseline_rows, step.is_baseline)
        keep, expected_accepted, loss = select_candidates(
            candidates.arrays,
            survivals,
            step.request_arrays,
            now,
            time_value,
            suspended,
            budget,
            self._last_speculated,
        )
        self.exploration_budget.spend(loss)
        step.expected_tokens += float(survivals[keep].sum())
        step.expected_accepted = expected_accepted.tolist()
        step.chosen = candidates.select(keep)
        self._last_speculated[step.slots[step.chosen.owners]] = self._num_steps
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
        self._num_steps += 1
        seconds -= step.lookup_seconds
        if verified is not None and not verified.all():
            step.chosen, accepted = step.chosen.select(verified), accepted[verified]
        rates = self._record_outcome(step, accepted, seconds)
        if self.cost.covers(step.num_rows):
            self.cost.update(
                step.num_rows, seconds - step.draft_seconds, step.context, sampled=step.has_sampled
            )
        if len(accepted):
            chosen = step.chosen
            slots = step.slots[chosen.owners]
            self.survival.learn(chosen.drafter_survival, chosen.parents, chosen.kinds, slots, accepted)
        if len(step.slots):
            self._schedule_baseline_step(step)
        return rates

    def estimate_survival(self, step: Step, candidates: Candidates) -> FloatArray:
        """Calibrated survival probability of each candidate."""
        return self.survival.estimate(
            candidates.drafter_survival, candidates.parents, candidates.kinds, step.slots[candidates.owners]
        )

    def _is_suspended(self, greedy: BoolArray) -> BoolArray:
        """Mask of the requests whose class (greedy or sampled) loses time by speculation."""
        return np.where(greedy, self.net_gain[True].is_losing, self.net_gain[False].is_losing)

    def _time_value(self, step: Step) -> TimeValue:
        """Cost curve of the step, and the value of a second in tokens: the throughput of non-speculative
        decoding of these requests alone, without prefill, times the recent speedup.
        """
        curve = self.cost.upper_curve(step.baseline_rows, step.context, sampled=step.has_sampled)
        baseline = interpolate(*curve, float(len(step.slots)))
        return curve, self._speedup.value * len(step.slots) / baseline

    def _record_outcome(self, step: Step, accepted: BoolArray, seconds: float) -> Goodput | None:
        """Record gains and costs of the step's draft tokens. Those of requests that are not adaptive do not
        count.
        """
        num = len(step.slots)
        if num:
            self.exploration_budget.accrue(seconds)
        if not num or not self.cost.covers(step.num_rows):  # a prefill step
            self._uncharged_draft_seconds += step.draft_seconds
            return None
        measured = (num + np.count_nonzero(accepted)) / (seconds + step.lookup_seconds)
        if not len(accepted) and not step.draft_seconds:  # a baseline step
            self._record_lookups(step, 0.0, 0.0, seconds)
            if step.adaptive.all():
                self._speedup.update(1.0, 1.0)
            return Goodput(measured, measured, measured)
        baseline, alone, speculative = self._step_seconds(step, step.baseline_rows, num, step.num_rows)
        token_seconds, expected = alone / num, speculative + step.draft_seconds
        clipped = min(
            max(seconds, (1 - MAX_TIMING_DEVIATION) * expected), (1 + MAX_TIMING_DEVIATION) * expected
        )
        self._record_net_gain(step, accepted, (clipped - baseline, baseline, token_seconds))
        if len(accepted):
            self._record_lookups(step, token_seconds, (speculative - baseline) / len(accepted), seconds)
        if step.adaptive.all():
            self._speedup.update((num + np.count_nonzero(accepted)) / num, clipped / baseline)
        return Goodput(step.expected_tokens / expected, measured, num / baseline)

    def _record_net_gain(self, step: Step, accepted: BoolArray, times: tuple[float, float, float]) -> None:
        """Record savings and costs of draft tokens per class of requests.

        A class is charged its share of the time beyond a baseline step, and of earlier drafting time that
        produced no verified draft tokens.
        """
        extra, baseline, token_seconds = times
        if not len(accepted):
            self._uncharged_draft_seconds += step.draft_seconds
            return
        totals = totals_by_class(
            step.request_arrays, step.chosen.owners, step.chosen.mandatory, accepted
        ).tolist()
        for greedy, (share, num_chosen, num_accepted, _) in enumerate(totals):
            if num_chosen:
                cost = (extra + self._uncharged_draft_seconds) * num_chosen / len(accepted)
                self.net_gain[bool(greedy)].record(num_accepted * token_seconds, cost, baseline * share)
        self._uncharged_draft_seconds = 0.0
        step.accepted_lookups = (totals[0][3], totals[1][3])

    def _record_lookups(self, step: Step, token_seconds: float, row_seconds: float, seconds: float) -> None:
        """Record lookup time, expected savings and realized savings per class of requests, in seconds."""
        if step.lookup_enabled is None or step.is_baseline:
            return
        nums = (len(step.slots) - step.num_greedy, step.num_greedy)
        lookup = min(step.lookup_seconds, MAX_LOOKUP_SHARE * seconds)
        for backoff, num, enabled, (tokens, rows), num_accepted in zip(
            self.lookup_backoff,
            nums,
            step.lookup_enabled,
            step.expected_accepted,
            step.accepted_lookups,
            strict=True,
        ):
            if num and enabled:
                expected, realized = (
                    each * token_seconds - rows * row_seconds for each in (tokens, num_accepted)
                )
                backoff.record_lookup(max(expected, 0.0), realized, lookup * num / len(step.slots))

    def _step_seconds(self, step: Step, *rows: int) -> list[float]:
        """Predicted seconds of steps with these numbers of rows, otherwise like this step."""
        curve = self.cost.curve_at(step.context, sampled=step.has_sampled)
        return [interpolate(self.cost.rows, curve, float(num)) for num in rows]

    def _schedule_baseline_step(self, step: Step) -> None:
        """Decide whether the next step is a baseline step, so that the cost of non-speculative decoding stays
        measured.
        """
        speculated = len(step.chosen) > 0 or step.draft_seconds > 0
        self._steps_since_baseline = (
            self._steps_since_baseline + 1 if speculated and not step.is_baseline else 0
        )
        self._baseline_next = False
        if self._steps_since_baseline >= MIN_BASELINE_INTERVAL:
            baseline, with_drafts = self._step_seconds(step, step.baseline_rows, step.num_rows)
            expected = step.expected_tokens / len(step.slots) * baseline / (with_drafts + step.draft_seconds)
            self._baseline_next = self.exploration_budget.spend(
                baseline * (1 - 1 / max(self._speedup.value, expected))
            )


@compiled
def select_candidates(
    candidates: CandidateArrays,
    survivals: FloatArray,
    requests: tuple[IntArray, BoolArray, BoolArray],
    step: tuple[int, bool],
    time_value: TimeValue,
    suspended: tuple[bool, bool],
    budget: float,
    last_speculated: IntArray,
) -> tuple[BoolArray, FloatArray, float]:
    """Select the candidates to verify.

    Returns the mask; per class (sampled, greedy), the expected accepted tokens and the number of candidates
    selected because they pay; and the expected loss in seconds of exploratory candidates. Classes that are
    `suspended` get none that pay. Requests without any may get one exploratory candidate, least recently
    speculated requests first.
    """
    _, parents, _, owners, mandatory = candidates
    slots, greedy, adaptive = requests
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
        keep_most_likely(keep, survivals, eligible, len(slots), rows, time_value)
        for i in range(len(owners)):
            if keep[i] and eligible[i]:
                expected_accepted[int(greedy[owners[i]]), 0] += survivals[i]
                expected_accepted[int(greedy[owners[i]]), 1] += 1
        first_tokens = _exploration_candidates(keep, candidates, last_speculated[slots])
        expected = np.where(eligible, survivals, 0.0)
        loss = keep_exploratory(keep, first_tokens, expected, rows, time_value, budget)
    return keep, expected_accepted, loss


@compiled
def _exploration_candidates(
    keep: BoolArray, candidates: CandidateArrays, last_speculated: IntArray
) -> IntArray:
    """First optional candidate of each request that has none selected, least recently speculated requests
    first.
    """
    _, parents, _, owners, mandatory = candidates
    first_tokens = np.full(len(last_speculated), -1)
    for i in range(len(owners) - 1, -1, -1):
        if parents[i] < 0 and not mandatory[i]:
            first_tokens[owners[i]] = i
    for i in range(len(owners)):
        if keep[i]:
            first_tokens[owners[i]] = -1
    waiting = np.flatnonzero(first_tokens >= 0)
    return first_tokens[waiting[np.argsort(last_speculated[waiting], kind="mergesort")]]


@compiled
def totals_by_class(
    requests: tuple[IntArray, BoolArray, BoolArray],
    owners: IntArray,
    mandatory: BoolArray,
    accepted: BoolArray,
) -> FloatArray:
    """Per class (sampled, greedy): share of the requests, then among tokens of adaptive requests the number
    chosen, the number accepted, and the number accepted that were not mandatory.
    """
    _, greedy, adaptive = requests
    out = np.zeros((2, 4))
    for i in range(len(greedy)):
        out[int(greedy[i]), 0] += 1 / len(greedy)
    for i in range(len(owners)):
        if adaptive[owners[i]]:
            out[int(greedy[owners[i]]), 1] += 1
            out[int(greedy[owners[i]]), 2] += accepted[i]
            out[int(greedy[owners[i]]), 3] += accepted[i] and not mandatory[i]
    return out


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
