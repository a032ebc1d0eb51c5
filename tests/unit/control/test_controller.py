"""The controller as engines use it: requests, the record of a step, and outcomes."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.control.candidates import Candidates
from forerun.control.controller import Controller
from forerun.control.step_cost import StepCost
from unit.control.lookup_steps import begin_step_with, lookup_draft


def test_requests_keep_their_settings_while_others_come_and_go() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.0)))
    expected: dict[str, tuple[bool, bool]] = {}
    for number in range(200):
        name, settings = str(number), (number % 2 == 0, number % 3 == 0)
        controller.admit(name, greedy=settings[0], adaptive=settings[1])
        expected[name] = settings
        if number % 5 == 4:
            controller.forget(str(number - 4))
            del expected[str(number - 4)]
    step = controller.begin_step(list(expected), len(expected) + 7)
    assert list(zip(step.greedy.tolist(), step.adaptive.tolist(), strict=True)) == list(expected.values())
    assert len(set(step.slots.tolist())) == len(expected)
    assert (step.num_prefill_rows, step.has_sampled) == (7, True)
    controller.forget("unknown")


def test_every_chosen_draft_token_needs_an_outcome() -> None:
    controller = Controller(StepCost((1, 2), (1.0, 1.0)))
    step, candidates = begin_step_with(controller, [lookup_draft(0.9, 0.8)])
    assert controller.choose(step, candidates).all()
    with pytest.raises(ValueError, match="1 outcomes for 2"):
        controller.record_step(step, np.array([True]), 1.0)


def test_only_verified_draft_tokens_are_recorded() -> None:
    """The engine verified the first of two chosen draft tokens."""
    both, first = (Controller(StepCost((1, 2), (1.0, 1.0))) for _ in range(2))
    for controller, length in ((both, 2), (first, 1)):
        step, candidates = begin_step_with(controller, [lookup_draft(*[0.9, 0.8][:length])])
        assert controller.choose(step, candidates).all()
        accepted, verified = np.array([True, False])[:length], np.array([True, False])[:length]
        controller.record_step(step, accepted, 1.0, verified)
        assert step.num_rows == 2
    assert both.survival.bias.tolist() == first.survival.bias.tolist()
    assert both.cost.at(2) == first.cost.at(2)


def test_accepted_lengths_of_chains_calibrate_the_draft_model() -> None:
    one, other = (Controller(StepCost((1, 2), (1.0, 1.0))) for _ in range(2))
    for controller in (one, other):
        controller.admit("a", greedy=True)
        controller.admit("b", greedy=False)
    step = one.begin_step(["a", "b"], 2)
    one.record_accepted(step, "model", np.array([3, 1]), np.array([1, 0]))
    step = other.begin_step(["a", "b"], 2)
    kinds = [other.kind(step, "model", owner) for owner in (0, 1)]
    chains = Candidates.from_chains(
        np.array([0.7, 0.7**2, 0.7**3, 0.7]),
        np.array([3, 1]),
        np.array([kinds[0]] * 3 + [kinds[1]]),
        np.zeros(2, dtype=bool),
    )
    step.chosen = chains
    other.record_step(step, np.array([True, False, False, False]), 1.0)
    assert one.survival.bias == pytest.approx(other.survival.bias)
    assert one.survival.coefficients == pytest.approx(other.survival.coefficients)
