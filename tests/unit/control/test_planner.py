"""Choices of the planner against exhaustive search, and draft lengths of draft models."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.control.candidates import Candidates
from forerun.control.controller import Controller
from forerun.control.draft_budget import MIN_RELATIVE_GAIN, NUM_SURVIVAL_LEVELS
from forerun.control.exploration import RESERVE_BASELINE_AFTER
from forerun.control.step import Step
from forerun.control.step_cost import StepCost
from forerun.errors import InvalidDraft
from forerun.types import BoolArray, Draft, Proposal
from unit.control.lookup_steps import begin_step_with, lookup_draft, run_steps

FLAT = (1.0, 1.0)
STEEP = (1.0, 2.0)


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


def test_a_poor_draft_is_cut_shorter_after_steps_with_high_goodput() -> None:
    controller = Controller(StepCost((1, 2, 16), (1.0, 1.02, 1.3)))
    controller.admit("a", greedy=True)
    before: list[int] = []
    after: list[int] = []
    for lengths in (before, after):
        step, candidates = begin_step_with(controller, [lookup_draft(*(0.3**depth for depth in range(1, 9)))])
        lengths.append(int(controller.choose(step, candidates).sum()))
        controller.forget("0")
        run_steps(controller, 0.97, 300, row_cost=0.02, length=16)
    assert after[0] < before[0], "a second is worth more tokens"


def test_a_selected_tree_node_keeps_its_ancestors() -> None:
    tree = Draft(
        np.array([1, 2, 3, 4]),
        np.array([-1, -1, 1, 0]),
        np.zeros(4, dtype=bool),
        source=("suffix",) * 4,
        survival=np.array([0.5, 0.45, 0.4, 0.05], dtype=np.float32),
    )
    controller = Controller(StepCost((1, 4, 5), (1.0, 1.0, 9.0)))
    step, candidates = begin_step_with(controller, [tree])
    keep = controller.choose(step, candidates)
    assert keep.tolist() == [True, True, True, False]
    controller = Controller(StepCost((1, 3, 4), (1.0, 1.0, 9.0)))
    step, candidates = begin_step_with(controller, [tree])
    part = tree.select(controller.choose(step, candidates))
    assert (part.tokens.tolist(), part.parents.tolist()) == ([1, 2], [-1, -1])


def suspend(controller: Controller, step: Step, *, greedy: bool) -> None:
    """Record losses of a class at the load of this step."""
    for _ in range(30):
        controller.accounting.level(step).guards[greedy].record(0.0, 5.0, 10.0)
    assert controller.accounting.suspended(step)[greedy]


def test_a_losing_class_of_requests_is_suspended_and_the_other_continues() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.01)))
    controller.admit("greedy", greedy=True)
    controller.admit("sampled", greedy=False)
    step = controller.begin_step(["greedy", "sampled"], 2)
    suspend(controller, step, greedy=False)
    candidates = Candidates.from_drafts(
        [lookup_draft(0.9), lookup_draft(0.9)], partial(controller.kind, step)
    )
    assert controller.choose(step, candidates).tolist() == [True, False]
    assert controller.draft_lengths(step, "model", np.array([4, 4])).tolist()[1] == 0


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


def test_draft_prefill_counts_as_exploration_cost() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.3)))
    controller.admit("a", greedy=False)
    one = np.array([1])
    for _ in range(200):  # every draft token is rejected, so drafting does not pay
        step = controller.begin_step(["a"], 1)
        controller.record_draft_time(step, "model", 1, 0.1)
        controller.record_accepted(step, "model", one, np.array([0]))
        controller.record_step(step, np.zeros(0, dtype=bool), 1.1)
    for _ in range(20):
        step = controller.begin_step(["a"], 801)
        controller.record_draft_time(step, "model", 1, 0.1 + 8.0, num_prefill_tokens=800)
    controller.exploration_budget.seconds = 1.0
    step = controller.begin_step(["a"], 1)
    step.is_baseline = False
    assert controller.draft_lengths(step, "model", one, num_prefill_tokens=800).tolist() == [0], (
        "8 s exceed the budget"
    )
    assert controller.draft_lengths(step, "model", one).tolist() == [1]


def planned_rows(acceptance: list[float], price: float, *, suspended: bool = False) -> int:
    """The rows planned for one request, with a step's exploration budget, in which each row has this cost."""
    costs = [1.0 + price * num for num in range(8)]
    controller = Controller(StepCost(range(1, 9), costs, prior_variance=0.0))
    controller.admit("r", greedy=True)
    controller.exploration_budget.accrue(1.0)
    step = controller.begin_step_ahead(["r"], 1)
    if suspended:
        suspend(controller, step, greedy=True)
    rows = np.array(acceptance)
    return int(controller.plan_rows(step, rows, np.array([len(rows)]))[0])


def test_rows_are_planned_while_they_pay() -> None:
    assert planned_rows([0.5, 0.3, 0.1, 0.05], 0.2) == 2
    assert planned_rows([0.5, 0.3, 0.1, 0.05], 0.01) == 4
    assert planned_rows([0.1, 0.05], 0.2) == 0


def test_no_rows_are_planned_for_a_suspended_class() -> None:
    assert planned_rows([0.5, 0.3, 0.1], 0.2, suspended=False) == 2
    assert planned_rows([0.5, 0.3, 0.1], 0.2, suspended=True) == 0


def test_a_baseline_step_is_planned_once_while_outcomes_are_late() -> None:
    controller = Controller(StepCost((1, 65), (1.0, 1.01), prior_variance=0.0))
    controller.admit("r", greedy=True)
    steps = [controller.begin_step_ahead(["r"], 1)]
    for _ in range(100):
        steps.append(controller.begin_step_ahead(["r"], 1))
        before = steps[-2]
        num = int(controller.plan_rows(before, np.array([0.05]), np.array([1]))[0])
        controller.record_step(before, np.zeros(num, dtype=bool), 1.0)
    is_baseline = [step.is_baseline for step in steps]
    assert any(is_baseline)
    assert not any(one and other for one, other in pairwise(is_baseline))
