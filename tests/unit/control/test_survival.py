"""The chance that a guess stands: learnt, and forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.control.survival import BIAS_TRUST, LINE, SurvivalEstimator
from forerun.types import FloatArray


def chain(survival: SurvivalEstimator, stated: list[float], kind: int, place: int, stood: int) -> None:
    """A chain of guesses, of which so many stood."""
    num = len(stated)
    survival.learn(
        np.array(stated),
        np.arange(-1, num - 1),
        np.full(num, kind),
        np.full(num, place),
        np.arange(num) < stood,
    )


def chance(survival: SurvivalEstimator, kind: int, place: int, stated: float = 0.7) -> float:
    found: FloatArray = survival.estimate(
        np.array([stated]), np.array([-1]), np.array([kind]), np.array([place])
    )
    return float(found[0])


def test_before_anything_was_seen_drafters_are_believed_a_little_more() -> None:
    survival = SurvivalEstimator()
    kind, place = survival.kind("suffix", greedy=True), survival.admit("a")
    logit = LINE[0] + LINE[1] * np.log(0.7 / 0.3)
    assert chance(survival, kind, place) == pytest.approx(1 / (1 + np.exp(-logit)))


def test_survival_is_the_product_down_a_tree() -> None:
    survival = SurvivalEstimator()
    kind, place = survival.kind("suffix", greedy=True), survival.admit("a")
    stated = np.array([0.7, 0.2, 0.49, 0.1])  # two children of the root, a child of the first, one of that
    parents = np.array([-1, -1, 0, 2])
    found = survival.estimate(stated, parents, np.full(4, kind), np.full(4, place))
    assert found[2] == pytest.approx(found[0] ** 2)
    assert found[3] < found[2] < found[0]
    assert found[1] < found[0]


@pytest.mark.parametrize("truth", [0.05, 0.5, 0.95])
def test_a_requests_own_record_is_learnt_within_some_rounds(truth: float) -> None:
    rng = np.random.default_rng(1)
    survival = SurvivalEstimator()
    kind, place = survival.kind("suffix", greedy=True), survival.admit("a")
    for _ in range(40):
        chain(survival, [0.7, 0.49, 0.343], kind, place, int(np.argmin([*(rng.random(3) < truth), False])))
    assert chance(survival, kind, place) == pytest.approx(truth, abs=0.15)


def test_requests_differ_and_new_ones_begin_as_others_did() -> None:
    survival = SurvivalEstimator()
    kind = survival.kind("suffix", greedy=True)
    good, bad = survival.admit("good"), survival.admit("bad")
    first = chance(survival, kind, good)
    for _ in range(30):
        chain(survival, [0.7, 0.49], kind, good, 2)
        chain(survival, [0.7, 0.49], kind, bad, 0)
    assert chance(survival, kind, good) > 0.85
    assert chance(survival, kind, bad) < 0.2
    new = survival.admit("new")
    assert 0.3 < chance(survival, kind, new) < first


def test_kinds_do_not_mix() -> None:
    survival = SurvivalEstimator()
    place = survival.admit("a")
    greedy, sampled = survival.kind("suffix", greedy=True), survival.kind("suffix", greedy=False)
    before = chance(survival, sampled, place)
    for _ in range(30):
        chain(survival, [0.7], greedy, place, 0)
    assert chance(survival, sampled, place) == before
    assert chance(survival, greedy, place) < 0.2


def test_a_guess_behind_one_that_fell_says_nothing() -> None:
    one, other = SurvivalEstimator(), SurvivalEstimator()
    for survival, length in ((one, 1), (other, 5)):
        kind, place = survival.kind("suffix", greedy=True), survival.admit("a")
        chain(survival, [0.7**depth for depth in range(1, length + 1)], kind, place, 0)
    assert one.bias.tolist() == other.bias.tolist()


def test_what_changed_is_noticed_within_twenty_rounds() -> None:
    survival = SurvivalEstimator()
    kind, place = survival.kind("suffix", greedy=True), survival.admit("a")
    for _ in range(300):
        chain(survival, [0.7, 0.49], kind, place, 2)
    for _ in range(20):
        chain(survival, [0.7, 0.49], kind, place, 0)
    assert chance(survival, kind, place) < 0.35


def test_how_it_goes_on_is_learnt_apart_from_how_it_begins() -> None:
    copied, chatty = SurvivalEstimator(), SurvivalEstimator()
    for survival, goes_on in ((copied, True), (chatty, False)):
        kind, place = survival.kind("suffix", greedy=True), survival.admit("a")
        for number in range(60):  # of the first guesses one in three stands
            chain(survival, [0.7, 0.49, 0.343], kind, place, (3 if goes_on else 1) * (number % 3 == 0))
    both = [(np.array([0.7, 0.49]), np.array([-1, 0]), np.zeros(2, np.int64), np.zeros(2, np.int64))] * 2
    (first, second), (other, third) = (
        each.estimate(*given) for each, given in zip((copied, chatty), both, strict=True)
    )
    assert first == pytest.approx(other, abs=0.15)
    assert second / first > 0.7
    assert third / other < 0.4


def test_requests_begin_as_those_before_them_ended() -> None:
    survival = SurvivalEstimator()
    kind = survival.kind("suffix", greedy=True)
    fresh = chance(survival, kind, survival.admit("fresh"))
    for number in range(10):
        place = survival.admit(str(number))
        for _ in range(20):
            chain(survival, [0.7], kind, place, 0)
        survival.forget(str(number))
    survival.lines[:] = LINE
    assert chance(survival, kind, survival.admit("new")) < fresh - 0.2
    before = survival._first_bias.copy()
    survival.admit("silent")
    survival.forget("silent")
    assert survival._first_bias.tolist() == before.tolist(), "who had no guesses has nothing to pass on"


def test_places_are_used_again_and_remember_nobody() -> None:
    survival = SurvivalEstimator()
    kind = survival.kind("suffix", greedy=True)
    for number in range(1000):
        place = survival.admit(str(number))
        assert survival.bias[place].tolist() == survival._first_bias.tolist()
        assert survival.bias_trust[place].tolist() == [[*BIAS_TRUST]]
        chain(survival, [0.7], kind, place, number % 2)
        if number >= 7:
            survival.forget(str(number - 7))
    assert len(survival.bias) == 8
    survival.forget("nobody")
