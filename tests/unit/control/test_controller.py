"""How far to guess: against a search over every choice there is, and over time."""

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
from forerun.control.controller import BASELINE_EVERY, Controller, Step
from forerun.control.draft_budget import LEVELS, MARGIN, by_survival, num_worth_verifying
from forerun.control.exploration import HEAD_START, MAX_BACKOFF_STEPS, MIN_LOOKUPS, SHARE, LookupBackoff
from forerun.control.step_cost import StepCost
from forerun.errors import InvalidDraft
from forerun.types import BoolArray, Draft, Proposal

FLAT = (1.0, 1.0)
STEEP = (1.0, 2.0)


def guessed(*survival: float) -> Draft:
    evidence = np.array(survival, dtype=np.float32)[:, None]
    return Draft.chain([1] * len(survival), source="suffix", evidence=evidence)


def opened(controller: Controller, drafts: list[Draft], rows: int | None = None) -> tuple[Step, Candidates]:
    """A step of new requests, one for every draft."""
    names = [str(number) for number in range(len(drafts))]
    for name in names:
        controller.admit(name, greedy=True)
    step = controller.begin_step(names, len(drafts) if rows is None else rows)
    return step, Candidates.of(drafts, partial(controller.kind, step))


def sizes(guesses: Candidates, kept: BoolArray) -> list[int]:
    return [int((guesses.owners[kept] == owner).sum()) for owner in range(guesses.owners.max(initial=0) + 1)]


def decide(costs: tuple[float, ...], *drafts: Draft) -> list[int]:
    controller = Controller(StepCost(range(1, len(costs) + 1), costs, doubt=0.0))
    step, guesses = opened(controller, list(drafts))
    return sizes(guesses, controller.choose(step, guesses))


def test_free_guesses_are_all_made_and_dear_ones_are_not() -> None:
    assert decide(FLAT, guessed(0.9, 0.3, 0.01)) == [3]
    assert decide(STEEP, guessed(0.9, 0.3, 0.01)) == [0]
    controller = Controller(StepCost((1, 2), STEEP))
    step, guesses = opened(controller, [])
    assert len(controller.choose(step, guesses)) == 0


def test_the_likeliest_guesses_of_the_batch_come_first() -> None:
    assert decide((1.0, 1.0, 1.0, 9.0), guessed(0.5, 0.2), guessed(0.9, 0.8)) == [0, 1]


def test_drawn_guesses_stay_whatever_they_cost() -> None:
    q = Proposal(torch.full((4,), 0.25))
    drawn = Draft.chain([1, 2], q=[q, q], source="model")
    assert decide(STEEP, drawn, guessed(0.5)) == [2, 0]
    with pytest.raises(InvalidDraft, match="draw fewer"):
        drawn.truncate(1)


def test_a_request_that_is_not_adaptive_gets_every_guess() -> None:
    controller = Controller(StepCost((1, 2), STEEP))
    controller.admit("a", greedy=True, adaptive=False)
    step = controller.begin_step(["a"], 1)
    guesses = Candidates.of([guessed(0.5, 0.01)], partial(controller.kind, step))
    assert controller.choose(step, guesses).all()
    assert controller.draft_lengths(step, "model", np.array([7])).tolist() == [7]


SURVIVALS = st.lists(st.floats(0.01, 0.99), max_size=4).map(lambda each: sorted(each, reverse=True))


@given(
    drafts=st.lists(SURVIVALS, min_size=1, max_size=3),
    steps=st.lists(st.floats(0.0, 0.5), min_size=3, max_size=20),
)
def test_no_other_choice_is_worth_more(drafts: list[list[float]], steps: list[float]) -> None:
    """By what a second is worth: at first, what plain decoding makes of it."""
    cost = StepCost(range(1, len(steps) + 2), np.cumsum([1.0, *steps]).tolist(), doubt=0.0)
    controller = Controller(cost)
    step, guesses = opened(controller, [guessed(*each) for each in drafts])
    survivals = controller.estimate_survival(step, guesses)
    of_each = [survivals[guesses.owners == owner] for owner in range(len(drafts))]
    rate = len(drafts) / cost.at(len(drafts))

    def worth(lengths: tuple[int, ...]) -> float:
        tokens = sum(each[:num].sum() for each, num in zip(of_each, lengths, strict=True))
        return float(tokens - rate * (cost.at(len(drafts) + sum(lengths)) - cost.at(len(drafts))))

    chosen = np.bincount(guesses.owners[controller.choose(step, guesses)], minlength=len(drafts)).tolist()
    best = max(worth(lengths) for lengths in product(*(range(len(each) + 1) for each in drafts)))
    if best > MARGIN * len(drafts):
        assert worth(tuple(chosen)) == pytest.approx(best, abs=len(guesses) / LEVELS)
    else:
        assert worth(tuple(chosen)) >= -1e-6


@given(
    survivals=st.lists(st.floats(0.001, 0.999), min_size=1, max_size=60),
    costs=st.lists(st.floats(0.0, 0.3), min_size=3, max_size=3),
)
def test_the_number_of_guesses_is_the_best_there_is(survivals: list[float], costs: list[float]) -> None:
    chances = np.sort(survivals)[::-1].copy()
    curve = (np.array([1.0, 8.0, 64.0]), np.array([1.0 + sum(costs[: num + 1]) for num in range(3)]))
    seconds = np.interp(np.arange(1.0, len(chances) + 2), *curve)
    worths = np.cumsum([0.0, *chances]) - 2.0 * (seconds - curve[1][0])
    num, worth = num_worth_verifying(chances, 1.0, 1, curve, 2.0, 0.0)
    assert worths[num] == pytest.approx(worth, abs=1e-9)
    assert max(worths.max(), MARGIN) == pytest.approx(max(worth, MARGIN), abs=1e-9)


@given(st.lists(st.floats(0.0, 1.0), max_size=60), st.data())
def test_the_likeliest_come_first_and_none_before_what_it_follows(
    chances: list[float], data: st.DataObject
) -> None:
    free = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(chances), max_size=len(chances))), dtype=bool
    )
    order = by_survival(np.array(chances), free).tolist()
    assert sorted(order) == np.flatnonzero(free).tolist()
    for earlier, later in pairwise(order):
        assert chances[earlier] > chances[later] - 1.01 / LEVELS
    falling = np.cumprod(np.array(chances))  # a chain, in which every guess is as likely as the next or more
    assert by_survival(falling, np.ones(len(chances), dtype=bool)).tolist() == list(range(len(chances)))


def test_what_is_left_of_drafts_is_what_each_has_left() -> None:
    drafts = [guessed(0.9, 0.8, 0.7), guessed(), guessed(0.5), guessed(0.6, 0.5)]
    for kept in ([1, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0], [0] * 6, [1] * 6):
        rest = np.array(kept, dtype=bool)
        places = [slice(0, 3), slice(3, 3), slice(3, 4), slice(4, 6)]
        lengths = [len(draft.select(rest[place])) for draft, place in zip(drafts, places, strict=True)]
        assert [len(draft) for draft in select_drafts(drafts, rest)] == lengths
    tree = Draft(np.array([1, 2, 3]), np.array([-1, -1, 1]), np.zeros(3, dtype=bool))
    (left,) = select_drafts([tree], np.array([False, True, True]))
    assert left.tokens.tolist() == [2, 3]
    assert left.parents.tolist() == [-1, 0]


def test_a_poor_step_is_over_sooner_where_others_are_good() -> None:
    controller = Controller(StepCost((1, 2, 16), (1.0, 1.02, 1.3)))
    before: list[int] = []
    after: list[int] = []
    for lengths in (before, after):
        step, guesses = opened(controller, [guessed(*(0.3**depth for depth in range(1, 9)))])
        lengths.append(int(controller.choose(step, guesses).sum()))
        controller.forget("0")
        run(controller, 0.97, 300, row_cost=0.02, length=16)
    assert after[0] < before[0], "a second is worth more now"


def test_a_tree_keeps_whatever_its_guesses_follow() -> None:
    tree = Draft(
        np.array([1, 2, 3, 4]),
        np.array([-1, -1, 1, 0]),
        np.zeros(4, dtype=bool),
        source=("suffix",) * 4,
        evidence=np.array([[0.5], [0.45], [0.4], [0.05]], dtype=np.float32),
    )
    controller = Controller(StepCost((1, 4, 5), (1.0, 1.0, 9.0)))
    step, guesses = opened(controller, [tree])
    kept = controller.choose(step, guesses)
    assert kept.tolist() == [True, True, True, False]
    controller = Controller(StepCost((1, 3, 4), (1.0, 1.0, 9.0)))
    step, guesses = opened(controller, [tree])
    part = tree.select(controller.choose(step, guesses))
    assert (part.tokens.tolist(), part.parents.tolist()) == ([1, 2], [-1, -1])


def run(controller: Controller, truth: float, num_steps: int, *, row_cost: float, length: int = 4) -> float:
    """Steps of one request whose guesses stand with some chance; returns tokens over those of plain decoding
    in the same time.
    """
    rng = np.random.default_rng(3)
    if "a" not in controller.survival:
        controller.admit("a", greedy=True)
    tokens = seconds = 0.0
    for _ in range(num_steps):
        step = controller.begin_step(["a"], 1)
        guesses = Candidates.of(
            [guessed(*(0.7**depth for depth in range(1, length + 1)))], partial(controller.kind, step)
        )
        num = int(controller.choose(step, guesses).sum())
        stood = np.cumprod(rng.random(num) < truth).astype(bool)
        took = 1.0 + row_cost * num
        controller.record_step(step, stood, took)
        tokens += 1 + int(stood.sum())
        seconds += took
    return tokens / seconds


def test_hopeless_guesses_are_given_up_and_finding_out_costs_what_it_may() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.5)))
    run(controller, 0.0, 50, row_cost=0.5)
    assert run(controller, 0.0, 2000, row_cost=0.5) >= 1 - 1.5 * SHARE
    first = 2.0  # the longest step there could be
    assert 0 < controller.purse.spent <= SHARE * controller.purse.total + HEAD_START * first


def test_what_was_given_up_is_found_again() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.2)))
    run(controller, 0.0, 500, row_cost=0.2)
    run(controller, 0.95, 500, row_cost=0.2)
    assert run(controller, 0.95, 100, row_cost=0.2) > 1.8


def test_a_wrong_curve_is_found_out_by_plain_steps() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.01)))  # says that guesses are nearly free
    run(controller, 0.3, 3000, row_cost=0.6)
    assert run(controller, 0.3, 1000, row_cost=0.6) > 0.98


def test_plain_steps_are_measured_now_and_then() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.01)))
    controller.admit("a", greedy=True)
    plain = 0
    for _ in range(20 * BASELINE_EVERY):
        step = controller.begin_step(["a"], 1)
        guesses = Candidates.of([guessed(0.9, 0.8)], partial(controller.kind, step))
        kept = controller.choose(step, guesses)
        plain += step.plain
        assert not (step.plain and kept.any())
        controller.record_step(step, kept[kept], 1.02)
    assert 5 <= plain <= 20


def test_a_class_of_requests_that_loses_stands_down_and_others_go_on() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.01)))
    controller.admit("greedy", greedy=True)
    controller.admit("sampled", greedy=False)
    for _ in range(30):
        controller.accounts[False].record(0.0, 1.0, 10.0)
    step = controller.begin_step(["greedy", "sampled"], 2)
    guesses = Candidates.of([guessed(0.9), guessed(0.9)], partial(controller.kind, step))
    assert controller.choose(step, guesses).tolist() == [True, False]
    assert controller.draft_lengths(step, "model", np.array([4, 4])).tolist()[1] == 0


def looked(
    controller: Controller, *, num_steps: int, look: float, stands: bool = False, found: bool = True
) -> int:
    """Steps of one request, with a look that takes so long wherever one pays; returns how many looked."""
    looks = 0
    for _ in range(num_steps):
        step = controller.begin_step(["a"], 1)
        guesses = Candidates.none()
        if controller.should_draft(step).all():
            looks += 1
            step.look_seconds = look
            guesses = Candidates.of([guessed(*[0.9] * found)], partial(controller.kind, step))
        num = int(controller.choose(step, guesses).sum())
        controller.record_step(step, np.full(num, stands), 1.0 + 0.05 * num)
    return looks


def test_nobody_looks_where_looking_costs_more_than_it_brings() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.05)))
    controller.admit("a", greedy=True)
    looked(controller, found=False, num_steps=100, look=0.02)
    assert looked(controller, found=False, num_steps=900, look=0.02) <= 900 / MAX_BACKOFF_STEPS
    looked(controller, stands=False, num_steps=200, look=0.02)
    assert looked(controller, stands=False, num_steps=900, look=0.02) < 900 / 3
    assert looked(controller, stands=True, num_steps=100, look=0.02) >= 70, "it is found out when that ends"
    assert looked(controller, stands=True, num_steps=500, look=0.02) >= 490
    steady = Controller(StepCost((1, 2), (1.0, 1.05)))
    steady.admit("a", greedy=True, adaptive=False)
    assert looked(steady, stands=False, num_steps=200, look=0.02) == 200, "all that there is was asked for"


def test_guesses_that_nobody_asked_us_about_tell_nothing_of_looking() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.5)))
    controller.admit("a", greedy=True)
    controller.admit("all", greedy=True, adaptive=False)
    for _ in range(300):
        step = controller.begin_step(["a", "all"], 2)
        looks = controller.should_draft(step)
        assert looks[1]
        step.look_seconds = 0.02
        own = guessed(0.99) if looks[0] else guessed()
        guesses = Candidates.of([own, guessed(*[0.5] * 4)], partial(controller.kind, step))
        kept = controller.choose(step, guesses)
        stood = guesses.owners[kept] == 0
        controller.record_step(step, stood, 1.0 + 0.5 * (1 + kept.sum()))
    assert looks[0], "what others lose is not held against it"


def test_one_slow_look_is_forgotten() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.05)))
    controller.admit("a", greedy=True)
    looked(controller, stands=True, num_steps=1, look=100.0)
    assert looked(controller, stands=True, num_steps=100, look=0.001) >= 95


def rested(rest: LookupBackoff, outcomes: Sequence[tuple[float, float]], *, took: float = 1.0) -> int:
    """How many of so many steps pass without a look, where looks promise and bring that."""
    steps = 0
    for promised, brought in outcomes:
        if rest.should_look_up():
            rest.record_lookup(promised, brought, took)
        else:
            steps += 1
    return steps


def test_promises_count_as_far_as_they_are_kept() -> None:
    """Guesses that are chosen for what they promise bring less; whether that is still enough is noisy."""
    noise = np.random.default_rng(0).normal(0.0, 8.0, (20, 3000))

    def share(mean: float, rests: list[LookupBackoff]) -> float:
        outcomes = ([(2.0, mean + each) for each in some] for some in noise)
        return sum(map(rested, rests, outcomes)) / noise.size

    tired = [LookupBackoff() for _ in noise]
    assert share(2.0, [LookupBackoff() for _ in noise]) < 0.05
    assert share(0.0, tired) > 0.75
    assert rested(tired[0], [(200.0, 200.0)] * 100) <= 2 * MAX_BACKOFF_STEPS, "text begins to repeat"
    assert rested(tired[0], [(0.0, 0.0)] * 1200) > 800
    assert rested(tired[0], [(0.0, 100.0)] * 20) <= MAX_BACKOFF_STEPS, "somebody found out"


def test_one_class_rests_and_the_other_does_not() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.05)))
    controller.admit("greedy", greedy=True)
    controller.admit("drawn", greedy=False)
    for _ in range(2 * int(MIN_LOOKUPS)):
        controller.rests[0].record_lookup(0.0, 0.0, 1.0)
        controller.rests[1].record_lookup(2.0, 2.0, 1.0)
    assert controller.should_draft(controller.begin_step(["greedy", "drawn"], 2)).tolist() == [True, False]


def test_a_draft_model_goes_as_far_as_its_passes_pay() -> None:
    near, far = (Controller(StepCost((1, 2), (1.0, 1.01))) for _ in range(2))
    for controller, seconds in ((near, 0.5), (far, 0.01)):
        controller.admit("a", greedy=False)
        for _ in range(BASELINE_EVERY - 10):
            step = controller.begin_step(["a"], 1)
            controller.record_draft_time(step, "model", 1, seconds)
            controller.record_step(step, np.zeros(0, dtype=bool), 1.0 + seconds)
    depths = [
        int(each.draft_lengths(each.begin_step(["a"], 1), "model", np.array([16]))[0]) for each in (near, far)
    ]
    assert depths[0] < depths[1]
    assert depths[1] >= 8
    assert far.draft_lengths(far.begin_step(["a"], 1), "model", np.array([0])).tolist() == [0]


def test_a_step_that_reads_far_more_than_the_curve_knows_is_not_held_against_guesses() -> None:
    for rows, loses in ((1, True), (800, False)):
        controller = Controller(StepCost((1, 2), (1.0, 1.01)))
        controller.admit("a", greedy=True)
        for _ in range(100):
            step = controller.begin_step(["a"], rows)
            step.guesses = Candidates.of([guessed(0.9)], partial(controller.kind, step))
            rates = controller.record_step(step, np.array([False]), 100.0)
            assert (rates is None) == (rows > 2)
        assert controller.accounts[True].is_losing == loses


def test_what_was_drawn_in_vain_is_paid_for_by_what_was_not() -> None:
    """A draft model takes most of a step and nothing is checked; then one guess is, and stands."""
    for seconds, loses in ((0.0, False), (3.0, True)):
        controller = Controller(StepCost((1, 2), (1.0, 1.01)))
        controller.admit("a", greedy=True)
        for _ in range(50):
            step = controller.begin_step([], 5)
            controller.record_draft_time(step, "model", 1, seconds, reading=5)
            controller.record_step(step, np.zeros(0, dtype=bool), 1.0)
            step = controller.begin_step(["a"], 1)
            step.guesses = Candidates.of([guessed(0.9)], partial(controller.kind, step))
            controller.record_step(step, np.array([True]), 1.01)
        assert controller.accounts[True].is_losing == loses


def test_reading_prompts_is_no_part_of_a_pass_and_is_paid_for_when_it_is_tried() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.3)))
    controller.admit("a", greedy=False)
    one = np.array([1])
    for _ in range(200):  # nothing it draws stands, so it does not pay
        step = controller.begin_step(["a"], 1)
        controller.record_draft_time(step, "model", 1, 0.1)
        controller.record_accepted(step, "model", one, np.array([0]))
        controller.record_step(step, np.zeros(0, dtype=bool), 1.1)
    before = controller._pass_share["model"]
    for _ in range(20):
        step = controller.begin_step(["a"], 801)
        controller.record_draft_time(step, "model", 1, 0.1 + 8.0, reading=800)
        controller.record_draft_time(step, "model", 0, 0.0, reading=800)  # it was not run
    assert controller._pass_share["model"] == before
    controller.purse.seconds = 1.0
    step = controller.begin_step(["a"], 1)
    step.plain = False
    assert controller.draft_lengths(step, "model", one, reading=800).tolist() == [0], (
        "8 seconds are not there"
    )
    assert controller.draft_lengths(step, "model", one).tolist() == [1]


def test_guesses_that_will_be_left_out_are_worth_nothing_and_drawn_ones_cost_their_rows() -> None:
    controller = Controller(StepCost((1, 2, 4), (1.0, 1.3, 1.9), doubt=0.0))
    controller.admit("a", greedy=True)
    step = controller.begin_step(["a"], 1)
    hopeless = Candidates.of([guessed(*[0.1] * 8)], partial(controller.kind, step))
    assert controller.estimate_survival(step, hopeless).sum() > 0
    assert controller.expected_gain(step, hopeless).tolist() == [0.0]
    drawn = replace(hopeless, fixed=np.ones(len(hopeless), dtype=bool))
    assert controller.expected_gain(step, drawn)[0] < 0
    good = Candidates.of([guessed(0.9)], partial(controller.kind, step))
    assert 0 < controller.expected_gain(step, good)[0] < controller.estimate_survival(step, good)[0]
    assert controller.expected_gain(controller.begin_step([], 5), Candidates.none()).tolist() == []
