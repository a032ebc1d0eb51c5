"""The cost of a draft model: forward passes and prefill."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.control.draft_cost import EMA_WEIGHT, PRIOR_PASS_SHARE, DraftCost
from forerun.control.step import Step
from forerun.control.step_cost import StepCost


def step_of(num_requests: int) -> Step:
    flags = np.ones(num_requests, dtype=bool)
    return Step(np.arange(num_requests), flags, flags, num_requests, 0, is_baseline=False)


def test_a_draft_pass_costs_a_share_of_the_target_step_over_the_same_requests() -> None:
    cost = DraftCost(StepCost((1, 2, 4), (1.0, 1.5, 2.0)))
    assert cost.pass_seconds(step_of(1), "model") == pytest.approx(PRIOR_PASS_SHARE)
    for _ in range(200):
        cost.record(step_of(1), "model", 4, 4 * 0.05, 0)
    assert cost.pass_seconds(step_of(1), "model") == pytest.approx(0.05)
    assert cost.pass_seconds(step_of(4), "model") == pytest.approx(0.05 * 2.0)
    assert cost.pass_seconds(step_of(1), "other") == pytest.approx(PRIOR_PASS_SHARE)


def test_one_slow_draft_pass_at_most_doubles_an_observation() -> None:
    cost = DraftCost(StepCost((1, 2), (1.0, 1.0)))
    cost.record(step_of(1), "model", 1, 100.0, 0)
    assert cost.pass_seconds(step_of(1), "model") == pytest.approx(PRIOR_PASS_SHARE * (1 + EMA_WEIGHT))


def test_draft_prefill_is_not_part_of_a_draft_pass() -> None:
    cost = DraftCost(StepCost((1, 2), (1.0, 1.0)))
    assert cost.prefill_seconds("model", 800) == 0.0
    for _ in range(3):
        cost.record(step_of(1), "model", 1, PRIOR_PASS_SHARE + 8.0, 800)
        cost.record(step_of(1), "model", 0, 0.0, 800)  # no forward pass
    assert cost.pass_seconds(step_of(1), "model") == pytest.approx(PRIOR_PASS_SHARE)
    assert cost.prefill_seconds("model", 100) == pytest.approx(1.0)
