"""The controller's choices against exhaustive search, and its behaviour over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.control.candidates import Candidates, select_drafts
from forerun.control.controller import RESERVE_BASELINE_AFTER, Controller, Step
from forerun.control.draft_budget import (
    MIN_RELATIVE_GAIN,
    NUM_SURVIVAL_LEVELS,
    num_worth_verifying,
    order_by_survival,
)
from forerun.control.exploration import (
    EXPLORATION_SHARE,
    INITIAL_BUDGET_STEPS,
    MAX_BACKOFF_STEPS,
    MIN_LOOKUPS,
    LookupBackoff,
)
from forerun.control.step_cost import StepCost
from forerun.errors import InvalidDraft
from forerun.types import BoolArray, Draft, Proposal

FLAT = (1.0, 1.0)
STEEP = (1.0, 2.0)


def lookup_draft(*survival: float) -> Draft:
    evidence = np.array(survival, dtype=np.float32)[:, None]
    return Draft.chain([1] * len(survival), source="suffix", evidence=evidence)


def begin_step_with(
    controller: Controller, drafts: list[Draft], rows: int | None = None
) -> tuple[Step, Candidates]:
    """A step of new requests, one per draft."""
    names = [str(number) for number in range(len(drafts))]
    for name in names:
        controller.admit(name, greedy=True)
    step = controller.begin_step(names, len(drafts) if rows is None else rows)
    return step, Candidates.from_drafts(drafts, partial(controller.kind, step))


def sizes(candidates: Candidates, keep: BoolArray) -> list[int]:
    return [
        int((candidates.owners[keep] == owner).sum()) for owner in range(candidates.owners.max(initial=0) + 1)
    ]


def chosen_lengths(costs: tuple[float, ...], *drafts: Draft) -> list[int]:
    controller = Controller(StepCost(range(1, len(costs) + 1), costs, prior_variance=0.0))
    step, candidates = begin_step_with(controller, list(drafts))
    return sizes(candidates, controller.choose(step, candidates))


def test_free_draft_tokens_are_all_verified_and_expensive_ones_are_not() -> None:
    assert chosen_lengths(FLAT, lookup_draft(0.9, 0.3, 0.01)) == [3]
    assert chosen_lengths(STEEP, lookup_draft(0.9, 0.3, 0.01)) == [0]
    controller = Controller(StepCost((1, 2), STEEP))
    step, candidates = begin_step_with(controller, [])
    assert len(controller.choose(step, candidates)) == 0


def test_the_most_likely_draft_tokens_of_the_batch_are_taken_first() -> None:
    assert chosen_lengths((1.0, 1.0, 1.0, 9.0), lookup_draft(0.5, 0.2), lookup_draft(0.9, 0.8)) == [0, 1]


def test_sampled_draft_tokens_are_kept_at_any_cost() -> None:
    q = Proposal(torch.full((4,), 0.25))
    sampled = Draft.chain([1, 2], q=[q, q], source="model")
    assert chosen_lengths(STEEP, sampled, lookup_draft(0.5)) == [2, 0]
    with pytest.raises(InvalidDraft, match="sampled"):
        sampled.truncate(1)


def test_a_request_that_is_not_adaptive_gets_every_draft_token() -> None:
    controller = Controller(StepCost((1, 2), STEEP))
    controller.admit("a", greedy=True, adaptive=False)
    step = controller.begin_step(["a"], 1)
    candidates = Candidates.from_drafts([lookup_draft(0.5, 0.01)], partial(controller.kind, step))
    assert controller.choose(step, candidates).all()
    assert controller.draft_lengths(step, "model", np.array([7])).tolist() == [7]


SURVIVALS = st.lists(st.floats(0.01, 0.99), max_size=4).map(lambda each: sorted(each, reverse=True))


@given(
    drafts=st.lists(SURVIVALS, min_size=1, max_size=3),
    steps=st.lists(st.floats(0.0, 0.5), min_size=3, max_size=20),
)
def test_the_choice_has_the_highest_value_of_all_choices(
    drafts: list[list[float]], steps: list[float]
) -> None:
    """At the initial rate, the throughput of non-speculative decoding."""
    cost = StepCost(range(1, len(steps) + 2), np.cumsum([1.0, *steps]).tolist(), prior_variance=0.0)
    controller = Controller(cost)
    step, candidates = begin_step_with(controller, [lookup_draft(*each) for each in drafts])
    survivals = controller.estimate_survival(step, candidates)
    by_request = [survivals[candidates.owners == owner] for owner in range(len(drafts))]
    rate = len(drafts) / cost.at(len(drafts))

    def worth(lengths: tuple[int, ...]) -> float:
        tokens = sum(each[:num].sum() for each, num in zip(by_request, lengths, strict=True))
        return float(tokens - rate * (cost.at(len(drafts) + sum(lengths)) - cost.at(len(drafts))))

    chosen = np.bincount(
        candidates.owners[controller.choose(step, candidates)], minlength=len(drafts)
    ).tolist()
    best = max(worth(lengths) for lengths in product(*(range(len(each) + 1) for each in drafts)))
    if best > MIN_RELATIVE_GAIN * len(drafts):
        assert worth(tuple(chosen)) == pytest.approx(best, abs=len(candidates) / NUM_SURVIVAL_LEVELS)
    else:
        assert worth(tuple(chosen)) >= -1e-6


@given(
    survivals=st.lists(st.floats(0.001, 0.999), min_size=1, max_size=60),
    costs=st.lists(st.floats(0.0, 0.3), min_size=3, max_size=3),
)
def test_the_number_of_draft_tokens_is_optimal(survivals: list[float], costs: list[float]) -> None:
    stated = np.sort(survivals)[::-1].copy()
    curve = (np.array([1.0, 8.0, 64.0]), np.array([1.0 + sum(costs[: num + 1]) for num in range(3)]))
    seconds = np.interp(np.arange(1.0, len(stated) + 2), *curve)
    worths = np.cumsum([0.0, *stated]) - 2.0 * (seconds - curve[1][0])
    num, worth = num_worth_verifying(stated, 1.0, 1, curve, 2.0, 0.0)
    assert worths[num] == pytest.approx(worth, abs=1e-9)
    assert max(worths.max(), MIN_RELATIVE_GAIN) == pytest.approx(max(worth, MIN_RELATIVE_GAIN), abs=1e-9)


@given(st.lists(st.floats(0.0, 1.0), max_size=60), st.data())
def test_candidates_are_ordered_by_survival_and_parents_precede_children(
    stated: list[float], data: st.DataObject
) -> None:
    free = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(stated), max_size=len(stated))),
        dtype=bool,
    )
    order = order_by_survival(np.array(stated), free).tolist()
    assert sorted(order) == np.flatnonzero(free).tolist()
    for earlier, later in pairwise(order):
        assert stated[earlier] > stated[later] - 1.01 / NUM_SURVIVAL_LEVELS
    falling = np.cumprod(np.array(stated))  # a chain: survival never increases
    assert order_by_survival(falling, np.ones(len(stated), dtype=bool)).tolist() == list(range(len(stated)))


def test_selecting_drafts_together_equals_selecting_each() -> None:
    drafts = [lookup_draft(0.9, 0.8, 0.7), lookup_draft(), lookup_draft(0.5), lookup_draft(0.6, 0.5)]
    for keep in ([1, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0], [0] * 6, [1] * 6):
        mask = np.array(keep, dtype=bool)
        slices = [slice(0, 3), slice(3, 3), slice(3, 4), slice(4, 6)]
        lengths = [len(draft.select(mask[each])) for draft, each in zip(drafts, slices, strict=True)]
        assert [len(draft) for draft in select_drafts(drafts, mask)] == lengths
    tree = Draft(np.array([1, 2, 3]), np.array([-1, -1, 1]), np.zeros(3, dtype=bool))
    (left,) = select_drafts([tree], np.array([False, True, True]))
    assert left.tokens.tolist() == [2, 3]
    assert left.parents.tolist() == [-1, 0]


def test_a_poor_draft_is_cut_shorter_after_steps_with_high_goodput() -> None:
    controller = Controller(StepCost((1, 2, 16), (1.0, 1.02, 1.3)))
    before: list[int] = []
    after: list[int] = []
    for lengths in (before, after):
        step, candidates = begin_step_with(controller, [lookup_draft(*(0.3**depth for depth in range(1, 9)))])
        lengths.append(int(controller.choose(step, candidates).sum()))
        controller.forget("0")
        run(controller, 0.97, 300, row_cost=0.02, length=16)
    assert after[0] < before[0], "a second is worth more tokens"


def test_a_selected_tree_node_keeps_its_ancestors() -> None:
    tree = Draft(
        np.array([1, 2, 3, 4]),
        np.array([-1, -1, 1, 0]),
        np.zeros(4, dtype=bool),
        source=("suffix",) * 4,
        evidence=np.array([[0.5], [0.45], [0.4], [0.05]], dtype=np.float32),
    )
    controller = Controller(StepCost((1, 4, 5), (1.0, 1.0, 9.0)))
    step, candidates = begin_step_with(controller, [tree])
    keep = controller.choose(step, candidates)
    assert keep.tolist() == [True, True, True, False]
    controller = Controller(StepCost((1, 3, 4), (1.0, 1.0, 9.0)))
    step, candidates = begin_step_with(controller, [tree])
    part = tree.select(controller.choose(step, candidates))
    assert (part.tokens.tolist(), part.parents.tolist()) == ([1, 2], [-1, -1])


def run(controller: Controller, truth: float, num_steps: int, *, row_cost: float, length: int = 4) -> float:
    """Run steps of one request whose draft tokens are accepted with probability `truth`. Returns tokens per
    second; non-speculative decoding has 1.
    """
    rng = np.random.default_rng(3)
    if "a" not in controller.survival:
        controller.admit("a", greedy=True)
    tokens = seconds = 0.0
    for _ in range(num_steps):
        step = controller.begin_step(["a"], 1)
        candidates = Candidates.from_drafts(
            [lookup_draft(*(0.7**depth for depth in range(1, length + 1)))], partial(controller.kind, step)
        )
        num = int(controller.choose(step, candidates).sum())
        accepted = np.cumprod(rng.random(num) < truth).astype(bool)
        took = 1.0 + row_cost * num
        controller.record_step(step, accepted, took)
        tokens += 1 + int(accepted.sum())
        seconds += took
    return tokens / seconds


def test_rejected_drafts_stop_and_exploration_stays_within_its_budget() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.5)))
    run(controller, 0.0, 50, row_cost=0.5)
    assert run(controller, 0.0, 2000, row_cost=0.5) >= 1 - 1.5 * EXPLORATION_SHARE
    first = 2.0  # the longest possible step
    assert (
        0
        < controller.exploration_budget.spent
        <= EXPLORATION_SHARE * controller.exploration_budget.total + INITIAL_BUDGET_STEPS * first
    )


def test_speculation_resumes_when_acceptance_recovers() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.2)))
    run(controller, 0.0, 500, row_cost=0.2)
    run(controller, 0.95, 500, row_cost=0.2)
    assert run(controller, 0.95, 100, row_cost=0.2) > 1.8


def test_baseline_steps_correct_a_wrong_cost_curve() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.01)))  # underestimates the cost of rows
    run(controller, 0.3, 3000, row_cost=0.6)
    assert run(controller, 0.3, 1000, row_cost=0.6) > 0.98


def test_baseline_steps_are_measured_regularly() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.01)))
    controller.admit("a", greedy=True)
    num_baseline = 0
    for _ in range(20 * RESERVE_BASELINE_AFTER):
        step = controller.begin_step(["a"], 1)
        candidates = Candidates.from_drafts([lookup_draft(0.9, 0.8)], partial(controller.kind, step))
        keep = controller.choose(step, candidates)
        num_baseline += step.is_baseline
        assert not (step.is_baseline and keep.any())
        controller.record_step(step, keep[keep], 1.02)
    assert 5 <= num_baseline <= 20


def test_a_losing_class_of_requests_is_suspended_and_the_other_continues() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.01)))
    controller.admit("greedy", greedy=True)
    controller.admit("sampled", greedy=False)
    for _ in range(30):
        controller.net_gain[False].record(0.0, 1.0, 10.0)
    step = controller.begin_step(["greedy", "sampled"], 2)
    candidates = Candidates.from_drafts(
        [lookup_draft(0.9), lookup_draft(0.9)], partial(controller.kind, step)
    )
    assert controller.choose(step, candidates).tolist() == [True, False]
    assert controller.draft_lengths(step, "model", np.array([4, 4])).tolist()[1] == 0


def run_with_lookups(
    controller: Controller,
    *,
    num_steps: int,
    lookup_seconds: float,
    accept: bool = False,
    found_any: bool = True,
) -> int:
    """Run steps of one request whose lookups take `lookup_seconds`; returns the number of lookups."""
    num_lookups = 0
    for _ in range(num_steps):
        step = controller.begin_step(["a"], 1)
        candidates = Candidates.empty()
        if controller.should_draft(step).all():
            num_lookups += 1
            step.lookup_seconds = lookup_seconds
            candidates = Candidates.from_drafts(
                [lookup_draft(*[0.9] * found_any)], partial(controller.kind, step)
            )
        num = int(controller.choose(step, candidates).sum())
        controller.record_step(step, np.full(num, accept), 1.0 + 0.05 * num)
    return num_lookups


def test_lookups_back_off_where_they_cost_more_than_they_gain() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.05)))
    controller.admit("a", greedy=True)
    run_with_lookups(controller, found_any=False, num_steps=100, lookup_seconds=0.02)
    assert (
        run_with_lookups(controller, found_any=False, num_steps=900, lookup_seconds=0.02)
        <= 900 / MAX_BACKOFF_STEPS
    )
    run_with_lookups(controller, accept=False, num_steps=200, lookup_seconds=0.02)
    assert run_with_lookups(controller, accept=False, num_steps=900, lookup_seconds=0.02) < 900 / 3
    assert run_with_lookups(controller, accept=True, num_steps=100, lookup_seconds=0.02) >= 70, "backoff ends"
    assert run_with_lookups(controller, accept=True, num_steps=500, lookup_seconds=0.02) >= 490
    steady = Controller(StepCost((1, 2), (1.0, 1.05)))
    steady.admit("a", greedy=True, adaptive=False)
    assert run_with_lookups(steady, accept=False, num_steps=200, lookup_seconds=0.02) == 200, "not adaptive"


def test_draft_tokens_of_requests_that_are_not_adaptive_do_not_affect_lookup_backoff() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.5)))
    controller.admit("a", greedy=True)
    controller.admit("all", greedy=True, adaptive=False)
    for _ in range(300):
        step = controller.begin_step(["a", "all"], 2)
        mask = controller.should_draft(step)
        assert mask[1]
        step.lookup_seconds = 0.02
        own = lookup_draft(0.99) if mask[0] else lookup_draft()
        candidates = Candidates.from_drafts([own, lookup_draft(*[0.5] * 4)], partial(controller.kind, step))
        keep = controller.choose(step, candidates)
        accepted = candidates.owners[keep] == 0
        controller.record_step(step, accepted, 1.0 + 0.5 * (1 + keep.sum()))
    assert mask[0], "losses of other requests do not count"


def test_one_slow_lookup_does_not_cause_backoff() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.05)))
    controller.admit("a", greedy=True)
    run_with_lookups(controller, accept=True, num_steps=1, lookup_seconds=100.0)
    assert run_with_lookups(controller, accept=True, num_steps=100, lookup_seconds=0.001) >= 95


def num_steps_backed_off(
    backoff: LookupBackoff, outcomes: Sequence[tuple[float, float]], *, took: float = 1.0
) -> int:
    """Number of steps without a lookup, for lookups with these expected and realized gains."""
    steps = 0
    for expected, realized in outcomes:
        if backoff.should_look_up():
            backoff.record_lookup(expected, realized, took)
        else:
            steps += 1
    return steps


def test_expected_gain_counts_by_its_realized_share() -> None:
    """Selection makes realized gains smaller than expected ones, and outcomes are noisy."""
    noise = np.random.default_rng(0).normal(0.0, 8.0, (20, 3000))

    def share(mean: float, rests: list[LookupBackoff]) -> float:
        outcomes = ([(2.0, mean + each) for each in some] for some in noise)
        return sum(map(num_steps_backed_off, rests, outcomes)) / noise.size

    losing = [LookupBackoff() for _ in noise]
    assert share(2.0, [LookupBackoff() for _ in noise]) < 0.05
    assert share(0.0, losing) > 0.75
    assert num_steps_backed_off(losing[0], [(200.0, 200.0)] * 100) <= 2 * MAX_BACKOFF_STEPS, (
        "text starts to repeat"
    )
    assert num_steps_backed_off(losing[0], [(0.0, 0.0)] * 1200) > 800
    assert num_steps_backed_off(losing[0], [(0.0, 100.0)] * 20) <= MAX_BACKOFF_STEPS, "exploration succeeded"


def test_each_class_of_requests_backs_off_on_its_own() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.05)))
    controller.admit("greedy", greedy=True)
    controller.admit("sampled", greedy=False)
    for _ in range(2 * int(MIN_LOOKUPS)):
        controller.lookup_backoff[0].record_lookup(0.0, 0.0, 1.0)
        controller.lookup_backoff[1].record_lookup(2.0, 2.0, 1.0)
    assert controller.should_draft(controller.begin_step(["greedy", "sampled"], 2)).tolist() == [True, False]


def test_a_draft_model_with_cheaper_passes_drafts_longer() -> None:
    slow_draft, fast_draft = (Controller(StepCost((1, 2), (1.0, 1.01))) for _ in range(2))
    for controller, seconds in ((slow_draft, 0.5), (fast_draft, 0.01)):
        controller.admit("a", greedy=False)
        for _ in range(RESERVE_BASELINE_AFTER - 10):
            step = controller.begin_step(["a"], 1)
            controller.record_draft_time(step, "model", 1, seconds)
            controller.record_step(step, np.zeros(0, dtype=bool), 1.0 + seconds)
    depths = [
        int(each.draft_lengths(each.begin_step(["a"], 1), "model", np.array([16]))[0])
        for each in (slow_draft, fast_draft)
    ]
    assert depths[0] < depths[1]
    assert depths[1] >= 8
    assert fast_draft.draft_lengths(fast_draft.begin_step(["a"], 1), "model", np.array([0])).tolist() == [0]


def test_a_prefill_step_beyond_the_cost_curve_does_not_count_against_speculation() -> None:
    for rows, is_losing in ((1, True), (800, False)):
        controller = Controller(StepCost((1, 2), (1.0, 1.01)))
        controller.admit("a", greedy=True)
        for _ in range(100):
            step = controller.begin_step(["a"], rows)
            step.chosen = Candidates.from_drafts([lookup_draft(0.9)], partial(controller.kind, step))
            rates = controller.record_step(step, np.array([False]), 100.0)
            assert (rates is None) == (rows > 2)
        assert controller.net_gain[True].is_losing == is_losing


def test_unverified_draft_time_is_charged_to_later_draft_tokens() -> None:
    """A draft model takes most of a step without verified tokens; then one token is verified and accepted."""
    for seconds, is_losing in ((0.0, False), (3.0, True)):
        controller = Controller(StepCost((1, 2), (1.0, 1.01)))
        controller.admit("a", greedy=True)
        for _ in range(50):
            step = controller.begin_step([], 5)
            controller.record_draft_time(step, "model", 1, seconds, num_prefill_tokens=5)
            controller.record_step(step, np.zeros(0, dtype=bool), 1.0)
            step = controller.begin_step(["a"], 1)
            step.chosen = Candidates.from_drafts([lookup_draft(0.9)], partial(controller.kind, step))
            controller.record_step(step, np.array([True]), 1.01)
        assert controller.net_gain[True].is_losing == is_losing


def test_draft_prefill_is_not_part_of_a_draft_pass_and_counts_as_exploration_cost() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.3)))
    controller.admit("a", greedy=False)
    one = np.array([1])
    for _ in range(200):  # every draft token is rejected, so drafting does not pay
        step = controller.begin_step(["a"], 1)
        controller.record_draft_time(step, "model", 1, 0.1)
        controller.record_accepted(step, "model", one, np.array([0]))
        controller.record_step(step, np.zeros(0, dtype=bool), 1.1)
    before = controller._draft_pass_share["model"]
    for _ in range(20):
        step = controller.begin_step(["a"], 801)
        controller.record_draft_time(step, "model", 1, 0.1 + 8.0, num_prefill_tokens=800)
        controller.record_draft_time(step, "model", 0, 0.0, num_prefill_tokens=800)  # no forward pass
    assert controller._draft_pass_share["model"] == before
    controller.exploration_budget.seconds = 1.0
    step = controller.begin_step(["a"], 1)
    step.is_baseline = False
    assert controller.draft_lengths(step, "model", one, num_prefill_tokens=800).tolist() == [0], (
        "8 s exceed the budget"
    )
    assert controller.draft_lengths(step, "model", one).tolist() == [1]


def test_optional_tokens_have_no_negative_value_and_mandatory_ones_cost_their_rows() -> None:
    controller = Controller(StepCost((1, 2, 4), (1.0, 1.3, 1.9), prior_variance=0.0))
    controller.admit("a", greedy=True)
    step = controller.begin_step(["a"], 1)
    unlikely = Candidates.from_drafts([lookup_draft(*[0.1] * 8)], partial(controller.kind, step))
    assert controller.estimate_survival(step, unlikely).sum() > 0
    assert controller.expected_gain(step, unlikely).tolist() == [0.0]
    sampled = replace(unlikely, mandatory=np.ones(len(unlikely), dtype=bool))
    assert controller.expected_gain(step, sampled)[0] < 0
    good = Candidates.from_drafts([lookup_draft(0.9)], partial(controller.kind, step))
    assert 0 < controller.expected_gain(step, good)[0] < controller.estimate_survival(step, good)[0]
    assert controller.expected_gain(controller.begin_step([], 5), Candidates.empty()).tolist() == []
