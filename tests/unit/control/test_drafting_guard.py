"""The guard: a sequential test of measured gains and losses."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.control.drafting_guard import MAX_LOSS_SHARE, MAX_SUSPENSION, DraftingGuard
from forerun.control.relative_times import RelativeTimes


def run_guard(
    mean_loss: float, deviation: float, num_steps: int, *, seed: int = 0, guard: DraftingGuard | None = None
) -> tuple[float, int]:
    """Steps that lose `mean_loss` of a baseline step while drafting is not suspended.

    Returns the share of all time that was lost, and the number of steps that drafted.
    """
    guard, random = guard or DraftingGuard(), np.random.default_rng(seed)
    num_drafted = 0
    for _ in range(num_steps):
        drafts = not guard.is_suspended
        num_drafted += drafts
        saved, cost = (1.0, 1.0 + mean_loss + deviation * random.standard_normal()) if drafts else (0.0, 0.0)
        guard.record(saved, cost, 1.0, 0.01)
    return num_drafted * mean_loss / num_steps, num_drafted


@pytest.mark.parametrize("loss", [0.03, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_is_stopped_and_costs_a_bounded_share_of_the_time(loss: float, seed: int) -> None:
    lost, num_drafted = run_guard(loss, 0.1, 5000, seed=seed)
    assert lost <= 2.5 * MAX_LOSS_SHARE
    assert num_drafted > 0


@pytest.mark.parametrize("seed", range(5))
def test_a_gain_is_not_stopped(seed: int) -> None:
    """Single steps vary three times as much as they gain."""
    _, num_drafted = run_guard(-0.1, 0.3, 5000, seed=seed)
    assert num_drafted >= 0.9 * 5000


def test_drafting_is_tried_again_and_goes_on_once_it_pays() -> None:
    guard = DraftingGuard()
    run_guard(2.0, 0.1, 50, guard=guard)
    assert guard.is_suspended
    _, num_drafted = run_guard(-0.5, 0.1, 2 * MAX_SUSPENSION, guard=guard)
    assert num_drafted >= MAX_SUSPENSION


def test_a_loss_within_the_error_of_the_baseline_is_not_acted_upon() -> None:
    for error, is_suspended in ((0.1, False), (0.01, True)):
        guard = DraftingGuard()
        for _ in range(100):
            guard.record(0.0, 0.1, 1.0, error)
            if guard.is_suspended:
                break
        assert guard.is_suspended == is_suspended


def test_losses_in_few_steps_count_relative_to_the_time_of_all_steps() -> None:
    """Exploration costs 0.5 % of all time; the same losses in every other step are too much."""
    for interval, is_suspended in ((20, False), (2, True)):
        guard = DraftingGuard()
        suspended = False
        for number in range(1000):
            guard.record(0.0, 0.1 * (number % interval == 0), 1.0, 0.01)
            suspended |= guard.is_suspended
        assert suspended == is_suspended


def test_a_suspended_class_looks_up_drafts_now_and_then() -> None:
    guard = DraftingGuard()
    while not guard.is_suspended:
        guard.record(0.0, 5.0, 1.0, 0.01)
    lookups = 0
    for _ in range(80):
        lookups += guard.should_look_up
        guard.record(0.0, 0.0, 1.0, 0.01)
    assert lookups == 10


def test_relative_times_follow_the_measurements_and_ignore_a_disturbance() -> None:
    times = RelativeTimes()
    assert times.factor == 1.0
    times.record(100.0, 1.0)
    assert times.factor < 1.5, "one disturbed step"
    for _ in range(30):
        times.record(1.2, 1.0)
    assert times.factor == pytest.approx(1.2, rel=0.02)
    assert times.standard_error < 0.05
    assert times.clip(50.0, 1.0) < 2.0
    assert times.clip(1.3, 1.0) == 1.3


def losing(match_rate: float, random: np.random.Generator) -> DraftingGuard:
    """A guard that has suspended drafting, of text in which first draft tokens match this often."""
    guard = DraftingGuard()
    while not guard.is_suspended:
        guard.record_matches(1, int(random.random() < match_rate))
        guard.record(1.0, 1.03 + 0.1 * random.standard_normal(), 1.0, 0.01)
    return guard


def num_lookups_until_resumed(guard: DraftingGuard, match_rate: float, random: np.random.Generator) -> int:
    """Lookups of a suspension that ends early; 0 if it lasts as long as it was meant to."""
    lookups, planned = 0, guard._remaining
    for number in range(planned):
        if guard.should_look_up:
            lookups += 1
            guard.record_matches(1, int(random.random() < match_rate))
            if not guard.is_suspended:
                return lookups if number < planned - 1 else 0
        guard.record(0.0, 0.0, 1.0, 0.01)
    return 0


def test_a_suspension_ends_early_once_lookups_match_more_often() -> None:
    random = np.random.default_rng(1)
    waits = [num_lookups_until_resumed(losing(0.2, random), 0.9, random) for _ in range(200)]
    assert np.mean([wait > 0 for wait in waits]) > 0.8
    assert np.median([wait for wait in waits if wait]) <= 16


def test_a_suspension_of_unchanged_text_hardly_ever_ends_early() -> None:
    random = np.random.default_rng(2)
    for rate in (0.1, 0.3, 0.6):
        ended = [num_lookups_until_resumed(losing(rate, random), rate, random) > 0 for _ in range(200)]
        assert np.mean(ended) < 0.1


def test_a_suspension_without_lookups_before_it_lasts() -> None:
    guard = DraftingGuard()
    while not guard.is_suspended:
        guard.record(0.0, 0.1, 1.0, 0.01)
    for _ in range(30):
        guard.record_matches(1, 1)
    assert guard.is_suspended
