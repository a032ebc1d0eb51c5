"""Calibration of acceptance probabilities: learning and forgetting."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.control.calibration import BIAS_PRIOR_PRECISION, PRIOR_COEFFICIENTS
from forerun.control.survival import SurvivalEstimator
from forerun.types import FloatArray


def learn_chain(
    survival: SurvivalEstimator, drafter_survival: list[float], kind: int, slot: int, num_accepted: int
) -> None:
    """Learn from a chain whose first `num_accepted` tokens were accepted."""
    num = len(drafter_survival)
    survival.learn(
        np.array(drafter_survival),
        np.arange(-1, num - 1),
        np.full(num, kind),
        np.full(num, slot),
        np.arange(num) < num_accepted,
    )


def estimate_one(survival: SurvivalEstimator, kind: int, slot: int, drafter_survival: float = 0.7) -> float:
    found: FloatArray = survival.estimate(
        np.array([drafter_survival]), np.array([-1]), np.array([kind]), np.array([slot])
    )
    return float(found[0])


def test_without_observations_the_prior_coefficients_apply() -> None:
    survival = SurvivalEstimator()
    kind, slot = survival.kind("suffix", greedy=True), survival.admit("a")
    logit = PRIOR_COEFFICIENTS[0] + PRIOR_COEFFICIENTS[1] * np.log(0.7 / 0.3)
    assert estimate_one(survival, kind, slot) == pytest.approx(1 / (1 + np.exp(-logit)))


def test_survival_is_the_product_of_probabilities_along_a_path() -> None:
    survival = SurvivalEstimator()
    kind, slot = survival.kind("suffix", greedy=True), survival.admit("a")
    drafter_survival = np.array([0.7, 0.2, 0.49, 0.1])  # two roots, a child of the first, and its child
    parents = np.array([-1, -1, 0, 2])
    found = survival.estimate(drafter_survival, parents, np.full(4, kind), np.full(4, slot))
    assert found[2] == pytest.approx(found[0] ** 2)
    assert found[3] < found[2] < found[0]
    assert found[1] < found[0]


@pytest.mark.parametrize("truth", [0.05, 0.5, 0.95])
def test_the_acceptance_of_a_request_is_learnt_within_40_steps(truth: float) -> None:
    rng = np.random.default_rng(1)
    survival = SurvivalEstimator()
    kind, slot = survival.kind("suffix", greedy=True), survival.admit("a")
    for _ in range(40):
        learn_chain(
            survival, [0.7, 0.49, 0.343], kind, slot, int(np.argmin([*(rng.random(3) < truth), False]))
        )
    assert estimate_one(survival, kind, slot) == pytest.approx(truth, abs=0.15)


def test_requests_have_their_own_bias_and_new_ones_start_from_the_shared_coefficients() -> None:
    survival = SurvivalEstimator()
    kind = survival.kind("suffix", greedy=True)
    good, bad = survival.admit("good"), survival.admit("bad")
    first = estimate_one(survival, kind, good)
    for _ in range(30):
        learn_chain(survival, [0.7, 0.49], kind, good, 2)
        learn_chain(survival, [0.7, 0.49], kind, bad, 0)
    assert estimate_one(survival, kind, good) > 0.85
    assert estimate_one(survival, kind, bad) < 0.2
    new = survival.admit("new")
    assert 0.3 < estimate_one(survival, kind, new) < first


def test_kinds_are_learnt_separately() -> None:
    survival = SurvivalEstimator()
    slot = survival.admit("a")
    greedy, sampled = survival.kind("suffix", greedy=True), survival.kind("suffix", greedy=False)
    before = estimate_one(survival, sampled, slot)
    for _ in range(30):
        learn_chain(survival, [0.7], greedy, slot, 0)
    assert estimate_one(survival, sampled, slot) == before
    assert estimate_one(survival, greedy, slot) < 0.2


def test_draft_tokens_after_a_rejected_one_are_ignored() -> None:
    one, other = SurvivalEstimator(), SurvivalEstimator()
    for survival, length in ((one, 1), (other, 5)):
        kind, slot = survival.kind("suffix", greedy=True), survival.admit("a")
        learn_chain(survival, [0.7**depth for depth in range(1, length + 1)], kind, slot, 0)
    assert one.bias.tolist() == other.bias.tolist()


def test_a_change_of_acceptance_is_learnt_within_20_steps() -> None:
    survival = SurvivalEstimator()
    kind, slot = survival.kind("suffix", greedy=True), survival.admit("a")
    for _ in range(300):
        learn_chain(survival, [0.7, 0.49], kind, slot, 2)
    for _ in range(20):
        learn_chain(survival, [0.7, 0.49], kind, slot, 0)
    assert estimate_one(survival, kind, slot) < 0.35


def test_continuation_is_learnt_separately_from_the_first_token() -> None:
    copied, chatty = SurvivalEstimator(), SurvivalEstimator()
    for survival, continues in ((copied, True), (chatty, False)):
        kind, slot = survival.kind("suffix", greedy=True), survival.admit("a")
        for number in range(60):  # one in three first tokens is accepted
            learn_chain(survival, [0.7, 0.49, 0.343], kind, slot, (3 if continues else 1) * (number % 3 == 0))
    both = [(np.array([0.7, 0.49]), np.array([-1, 0]), np.zeros(2, np.int64), np.zeros(2, np.int64))] * 2
    (first, second), (other, third) = (
        each.estimate(*given) for each, given in zip((copied, chatty), both, strict=True)
    )
    assert first == pytest.approx(other, abs=0.15)
    assert second / first > 0.7
    assert third / other < 0.4


def test_requests_start_from_the_biases_of_finished_ones() -> None:
    survival = SurvivalEstimator()
    kind = survival.kind("suffix", greedy=True)
    before_any = estimate_one(survival, kind, survival.admit("fresh"))
    for number in range(10):
        slot = survival.admit(str(number))
        for _ in range(20):
            learn_chain(survival, [0.7], kind, slot, 0)
        survival.forget(str(number))
    survival.coefficients[:] = PRIOR_COEFFICIENTS
    assert estimate_one(survival, kind, survival.admit("new")) < before_any - 0.2
    before = survival._initial_bias.copy()
    survival.admit("without drafts")
    survival.forget("without drafts")
    assert survival._initial_bias.tolist() == before.tolist(), (
        "a request without draft tokens carries nothing over"
    )


def test_slots_are_reused_without_leaking_state() -> None:
    survival = SurvivalEstimator()
    kind = survival.kind("suffix", greedy=True)
    for number in range(1000):
        slot = survival.admit(str(number))
        assert survival.bias[slot].tolist() == survival._initial_bias.tolist()
        assert survival.bias_precision[slot].tolist() == [[*BIAS_PRIOR_PRECISION]]
        learn_chain(survival, [0.7], kind, slot, number % 2)
        if number >= 7:
            survival.forget(str(number - 7))
    assert len(survival.bias) == 8
    survival.forget("unknown")
