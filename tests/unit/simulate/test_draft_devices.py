"""The time of simulated draft models: in turns with the target, and ahead of it."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.simulate.draft_devices import (
    DraftModelSetup,
    RunAheadDrafting,
    SequentialDrafting,
    passes_seconds,
)
from forerun.simulate.hardware import Roofline
from forerun.simulate.scenario import BASELINE, RUN_AHEAD, SEQUENTIAL, Scenario, simulate

DRAFT = Roofline.of("h100", "llama-3.2-1b")
LENGTHS = np.array([5, 5, 0, 5])


def run_ahead(hit_rate: float, outcomes: int = 8) -> RunAheadDrafting:
    setup = DraftModelSetup(model="llama-3.2-1b", hit_rate=hit_rate, outcomes=outcomes)
    return RunAheadDrafting(DRAFT, setup, np.random.default_rng(0))


def test_sequential_drafting_takes_a_forward_pass_for_each_draft_token() -> None:
    (one_pass,) = DRAFT(np.array([4.0]), 0.0).tolist()
    assert SequentialDrafting(DRAFT).seconds(LENGTHS, 0.1) == pytest.approx(5 * one_pass)
    assert SequentialDrafting(DRAFT).seconds(np.zeros(4, dtype=np.int64), 0.1) == 0.0


def test_prepared_drafts_are_hidden_behind_the_verification() -> None:
    assert run_ahead(1.0).seconds(LENGTHS, 1.0) == 0.0
    assert run_ahead(0.0).seconds(np.zeros(4, dtype=np.int64), 1.0) == 0.0
    prepared = passes_seconds(DRAFT, 6, 3 * 8)
    assert run_ahead(1.0).seconds(LENGTHS, 0.25 * prepared) == pytest.approx(0.75 * prepared)


def test_misses_wait_for_fresh_drafts() -> None:
    fresh = passes_seconds(DRAFT, 5, 3)
    assert run_ahead(0.0).seconds(LENGTHS, 1.0) == pytest.approx(fresh)
    some = run_ahead(0.5)
    seconds = [some.seconds(LENGTHS, 1.0) for _ in range(200)]
    assert 0 < np.mean(seconds) < fresh


def test_a_scenario_with_a_draft_model_compares_both_ways_to_run_it() -> None:
    scenario = Scenario.read("run-ahead").model_copy(update={"seconds": 60.0})
    assert scenario.policies == (BASELINE, SEQUENTIAL, RUN_AHEAD)
    assert RUN_AHEAD not in Scenario.read("chat").policies
    itl = {policy: simulate(scenario, policy).itl[0] for policy in scenario.policies}
    assert itl[RUN_AHEAD] < itl[SEQUENTIAL] < itl[BASELINE]
    always = scenario.model_copy(
        update={"draft": DraftModelSetup(model="llama-3.2-1b", devices=1, hit_rate=0.0)}
    )
    assert simulate(always, RUN_AHEAD).itl[0] > itl[RUN_AHEAD], "without hits nothing is hidden"
