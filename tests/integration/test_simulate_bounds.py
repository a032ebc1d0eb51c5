"""Simulated fleets and grids: replicas needed, the bounds of the controller, and the command."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forerun.cli.main import app
from forerun.errors import ConfigurationError
from forerun.simulate.grid import LENGTHS, GridCell, grid, run_grid
from forerun.simulate.scenario import BASELINE, FIXED, FORERUN, Scenario, replicas_needed, simulate
from forerun.simulate.traffic import Constant, Length, Poisson
from forerun.simulate.wrong_estimates import WrongEstimates, compare_with_baseline

SMALL = Scenario(
    name="small",
    device="h100",
    model="llama-3.1-8b",
    replicas=2,
    max_batch=64,
    arrivals=Poisson(rate=20),
    prompt=Length(median=200),
    output=Length(median=100),
    acceptance=Constant(chance=0.8),
    token_seconds=0.01,
    seconds=10.0,
)


def test_a_fleet_needs_fewer_replicas_with_accepted_draft_tokens() -> None:
    outcomes = {policy: simulate(SMALL, policy) for policy in (BASELINE, FIXED, FORERUN)}
    assert outcomes[FORERUN].itl[0] < 0.6 * outcomes[BASELINE].itl[0]
    assert outcomes[BASELINE].tokens_per_step == pytest.approx(1.0, abs=0.01)  # the last step is unfinished
    needed = {
        policy: replicas_needed(SMALL.model_copy(update={"arrivals": Poisson(rate=500)}), policy)
        for policy in (BASELINE, FORERUN)
    }
    assert needed[FORERUN] < needed[BASELINE]
    with pytest.raises(ConfigurationError, match="token_seconds"):
        replicas_needed(SMALL.model_copy(update={"token_seconds": None}), BASELINE)
    with pytest.raises(ConfigurationError, match="token_seconds=1e-06"):
        replicas_needed(SMALL.model_copy(update={"token_seconds": 1e-6}), BASELINE)
    with pytest.raises(ConfigurationError, match="does not fit"):
        simulate(SMALL.model_copy(update={"model": "llama-3.1-70b"}), BASELINE)


def test_the_controller_meets_its_bounds_on_the_grid() -> None:
    """A part of it; `forerun simulate --grid` runs all cells."""
    cells = [cell for cell in grid(acceptances=(0.0, 0.6, 0.95), batches=(1, 16, 64)) if cell.knee != 512]
    found = list(run_grid(cells))
    assert len(found) == 4 * 3 * 3 * 2 + 2 * 2
    for cell in found:
        assert cell["speedup"] >= 0.98, cell
        assert cell["text"] != "stationary" or cell["speedup_over_best_fixed"] >= 0.97, cell
        assert cell["text"] != "mixed" or cell["speedup_over_best_fixed"] >= 1.05, cell
        assert cell["exploration_share"] <= 0.01, cell
    assert {cell["best_fixed"] for cell in found} >= {0, max(LENGTHS)}


def test_a_controller_that_never_learns_fails_the_grid_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.control.survival.SurvivalEstimator.learn", lambda *_: None)
    (cell,) = run_grid([GridCell(8, 0.0, 1, "stationary")])
    assert cell["speedup"] > 0.98, "the guard suspends drafting"
    monkeypatch.setattr("forerun.control.drafting_guard.DraftingGuard.record", lambda *_: None)
    (cell,) = run_grid([GridCell(8, 0.0, 1, "stationary")])
    assert cell["speedup"] < 0.98


WRONG_ESTIMATES = (
    WrongEstimates(level=0.5, shape=0.5),
    WrongEstimates(level=2.0, heavy_tails=True),
    WrongEstimates(survival=3.0, persistent=True, heavy_tails=True),
    WrongEstimates(shape=0.5, survival=3.0, persistent=True, heavy_tails=True),
    WrongEstimates(shape=0.0, persistent=True),
    WrongEstimates(overhead=0.3),
)
CELLS = (
    GridCell(1, 0.0, 16, "stationary"),
    GridCell(8, 0.3, 1, "stationary"),
    GridCell(8, 0.6, 8, "shifting"),
    GridCell(64, 0.3, 16, "stationary"),
)


def test_wrong_estimates_do_not_make_drafting_slower_than_no_speculation() -> None:
    """`forerun simulate --wrong-estimates` runs all cells."""
    found = list(compare_with_baseline(product(CELLS, WRONG_ESTIMATES)))
    assert len(found) == len(WRONG_ESTIMATES) * len(CELLS)
    for each in found:
        assert each["speedup"] >= 0.98, each
    assert max(each["speedup"] for each in found) > 1.1


def test_without_the_guard_persistently_wrong_estimates_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.control.drafting_guard.DraftingGuard.record", lambda *_: None)
    (found,) = compare_with_baseline([(CELLS[0], WrongEstimates(shape=0.0, persistent=True))])
    assert found["speedup"] < 0.9, found


def test_the_command(tmp_path: Path) -> None:
    scenario, plot = tmp_path / "small.yaml", tmp_path / "small.png"
    tiny = SMALL.model_copy(update={"max_batch": 8, "seconds": 3.0})
    scenario.write_text(tiny.model_dump_json())  # JSON is YAML
    run = CliRunner().invoke(app, ["simulate", str(scenario), "--plot", str(plot)])
    assert run.exit_code == 0, run.output
    assert "fixed at 4" in run.stdout
    assert "replicas needed" in run.stdout
    assert plot.read_bytes()[1:4] == b"PNG"
    run = CliRunner().invoke(app, ["simulate", str(scenario), "--replicas", "1", "--json"])
    results = {each["policy"]: each for each in json.loads(run.stdout)["results"]}
    assert results["forerun"]["replicas_needed"] <= results["baseline"]["replicas_needed"]
    assert CliRunner().invoke(app, ["simulate"]).exit_code == 2
    run = CliRunner().invoke(app, ["simulate", "nowhere"])
    assert (run.exit_code, "agents, chat" in run.output) == (1, True)
