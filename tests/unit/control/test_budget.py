"""How far to guess: against a search over every choice there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.control.budget import spend
from forerun.control.cost import ENOUGH, REPEATS, StepCost
from forerun.control.trust import FORGET, PATIENCE, Trust
from forerun.types import Draft, Proposal

FLAT = StepCost((1, 2, 4, 64), (1.0, 1.0, 1.0, 1.0))
STEEP = StepCost((1, 2), (1.0, 2.0))


def guessed(*survival: float) -> Draft:
    return Draft.chain([1] * len(survival), evidence=np.array(survival, dtype=np.float32)[:, None])


def test_a_curve_is_a_line_between_what_was_measured_and_goes_on_behind() -> None:
    cost = StepCost((1, 4, 8), (1.0, 1.3, 1.7))
    assert cost(np.array([1.0, 2.0, 4.0, 6.0, 10.0])).tolist() == pytest.approx([1.0, 1.1, 1.3, 1.5, 1.9])


def test_a_curve_never_falls() -> None:
    cost = StepCost((1, 2, 4), (1.0, 0.5, 2.0))
    assert cost(np.array([1.0, 2.0, 3.0])).tolist() == pytest.approx([1.0, 1.0, 1.5])


def test_the_fastest_of_a_few_turns_counts() -> None:
    calls: list[int] = []

    def seconds(rows: int) -> float:
        calls.append(rows)
        return 0.01 * rows * (1 + len(calls) % 3)

    cost = StepCost.measured(seconds, rows=(1, 2))
    assert len(calls) == 1 + 2 * REPEATS
    assert cost(np.array([1.0]))[0] == pytest.approx(0.01)


def test_a_slow_step_is_measured_once() -> None:
    calls: list[int] = []

    def seconds(rows: int) -> float:
        calls.append(rows)
        return ENOUGH

    StepCost.measured(seconds, rows=(1, 2))
    assert len(calls) == 3


def test_free_guesses_are_all_made_and_dear_ones_are_not() -> None:
    draft = guessed(0.9, 0.3, 0.01)
    assert len(spend([draft], [1.0], FLAT, 1)[0]) == 3
    assert len(spend([draft], [1.0], STEEP, 1)[0]) == 0
    assert len(spend([], [], STEEP, 0)) == 0


def test_the_likeliest_guesses_of_the_batch_come_first() -> None:
    cost = StepCost((1, 2, 3, 4), (1.0, 1.0, 1.0, 9.0))
    kept = spend([guessed(0.5, 0.2), guessed(0.9, 0.8)], [1.0, 1.0], cost, 2)
    assert [len(draft) for draft in kept] == [0, 1]


def test_distrust_makes_guesses_dearer() -> None:
    cost = StepCost((1, 2), (1.0, 1.3))
    assert [len(spend([guessed(0.5)], [trust], cost, 1)[0]) for trust in (1.0, 0.5)] == [1, 0]


def test_drawn_guesses_stay_whatever_they_cost() -> None:
    q = Proposal(torch.full((4,), 0.25))
    drawn = Draft.chain([1, 2], q=[q, q], evidence=np.array([[0.01], [0.01]], dtype=np.float32))
    unknown = Draft.chain([3, 4])
    assert [len(draft) for draft in spend([drawn, unknown], [1.0, 1.0], STEEP, 2)] == [2, 2]


SURVIVALS = st.lists(st.floats(0.01, 0.99), max_size=4).map(lambda each: sorted(each, reverse=True))


@given(
    drafts=st.lists(SURVIVALS, min_size=1, max_size=3),
    steps=st.lists(st.floats(0.0, 0.5), min_size=3, max_size=20),
)
def test_no_other_choice_says_more_tokens_per_second(drafts: list[list[float]], steps: list[float]) -> None:
    cost = StepCost(range(1, len(steps) + 2), np.cumsum([1.0, *steps]).tolist())

    def goodput(sizes: tuple[int, ...]) -> float:
        tokens = len(drafts) + sum(sum(each[:num]) for each, num in zip(drafts, sizes, strict=True))
        return tokens / float(cost(np.array([len(drafts) + sum(sizes) + 0.0]))[0])

    chosen = spend([guessed(*each) for each in drafts], [1.0] * len(drafts), cost, len(drafts))
    best = max(goodput(sizes) for sizes in product(*(range(len(each) + 1) for each in drafts)))
    assert goodput(tuple(len(draft) for draft in chosen)) >= best * (1 - 1e-6)


def test_trust_falls_with_what_did_not_stand_and_never_exceeds_one() -> None:
    everybody = Trust()
    one, two = Trust(everybody), Trust(everybody)
    assert one.factor == 1.0
    one.heard(2.0, 0)
    assert one.factor == pytest.approx(PATIENCE * everybody.factor / (PATIENCE + 2.0))
    assert two.factor == everybody.factor < 1.0, "a new request believes what others saw"
    for _ in range(200):
        one.heard(1.0, 3)
    assert one.factor == 1.0


def test_what_is_distrusted_is_tried_again_later() -> None:
    trust = Trust()
    for _ in range(100):
        trust.heard(2.0, 0)
    low = trust.factor
    for _ in range(30):
        trust.heard(0.0, 0)
    assert trust.factor < 2 * low, "not at once"
    for _ in range(5000):
        trust.heard(0.0, 0)
    assert trust.factor > 0.9
    assert FORGET < 1
