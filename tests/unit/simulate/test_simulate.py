"""Engines on paper: costs, requests, a fleet, and the promises about the controller."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from forerun.cli.main import app
from forerun.errors import ConfigurationError
from forerun.simulate.fleet import serve
from forerun.simulate.grid import LENGTHS, Cell, Texts, grid, play, speed
from forerun.simulate.hardware import LAUNCH, MEMORY_SHARE, Roofline
from forerun.simulate.policies import ControllerPolicy, FixedLengthPolicy, profiled
from forerun.simulate.replica import Replica
from forerun.simulate.scenario import FIXED, OURS, PLAIN, Scenario, known, machines, simulate
from forerun.simulate.traffic import (
    Bursts,
    Constant,
    Daily,
    Length,
    Mixture,
    Poisson,
    Recorded,
    SimulatedRequest,
    visits,
)

H100 = Roofline.of("h100", "llama-3.1-8b")


def test_a_pass_reads_the_weights_and_multiplies_the_rows() -> None:
    few, many = H100(np.array([1.0, 4096.0]), 0.0)
    assert few == pytest.approx(LAUNCH + 2 * 8.03e9 / (MEMORY_SHARE * 3.35e12), rel=1e-3)
    assert many == pytest.approx(LAUNCH + 2 * 8.03e9 * 4096 / (0.6 * 989e12), rel=1e-2)
    assert H100(np.array([1.0]), 1e6)[0] > 2 * few, "a long context is read too"
    assert H100.room == pytest.approx((0.9 * 80e9 - 16.06e9) / 131072, rel=1e-3)
    with pytest.raises(ConfigurationError, match="h100"):
        Roofline.of("h1000", "llama-3.1-8b")


def test_requests_come_as_often_as_they_should() -> None:
    random = np.random.default_rng(0)
    few = Length(median=10, spread=1.0)
    for arrivals, expected in (
        (Poisson(rate=20), 2000),
        (Daily(kind="daily", low=10, high=30, period=100), 2000),
        (Bursts(kind="bursts", rate=10, burst=60, every=10, length=2), 2000),
    ):
        found = list(visits(arrivals, few, few, Constant(chance=0.5), 100.0, random))
        assert len(found) == pytest.approx(expected, rel=0.1)
        assert all(one.arrival <= other.arrival for one, other in pairwise(found))
        assert {visit.prompt for visit in found} == {10}
    mixed = Mixture(kind="mixture", chances=(0.1, 0.9), weights=(3, 1))
    chances = [each.chance for each in visits(Poisson(rate=50), few, few, mixed, 100.0, random)]
    assert np.mean(chances) == pytest.approx(0.3, abs=0.03)


def test_arrivals_can_be_recorded(tmp_path: Path) -> None:
    file = tmp_path / "arrivals.jsonl"
    file.write_text('{"at": 2, "prompt": 5, "output": 6}\n{"at": 1, "prompt": 3, "output": 4}\n')
    few, random = Length(median=1), np.random.default_rng(0)
    recorded = Recorded(kind="trace", file=file)
    found = list(visits(recorded, few, few, Constant(chance=0.5), 10.0, random))
    assert [(each.arrival, each.prompt, each.output) for each in found] == [(1, 3, 4), (2, 5, 6)]
    file.write_text('{"at": 2}\n')
    with pytest.raises(ConfigurationError, match="prompt"):
        list(visits(recorded, few, few, Constant(chance=0.5), 10.0, random))


def replica(length: int, chance: float, **options: int) -> tuple[Replica, SimulatedRequest]:
    made = Replica(H100, FixedLengthPolicy(length), np.random.default_rng(1), max_batch=8, **options)
    return made, SimulatedRequest(0.0, prompt=5000, output=200, chance=chance)


def test_a_replica_reads_prompts_in_pieces_and_says_what_stands() -> None:
    made, visit = replica(4, 1.0)
    outcome = serve([made], [visit], 100.0, np.random.default_rng(0))
    assert (outcome.finished, outcome.unfinished, made.tally.tokens) == (1, 0, 200)
    assert made.tally.passes == 3 + 40, "three pieces of the prompt, which end with a token, and 199 in fives"
    assert outcome.tokens_per_pass == pytest.approx(199 / 40)
    plain, visit = replica(0, 1.0)
    outcome = serve([plain], [visit], 100.0, np.random.default_rng(0))
    assert plain.tally.passes == 3 + 199
    assert outcome.between_tokens[0] == pytest.approx(float(H100(np.array([1.0]), 5100)[0]), rel=0.05)


def test_whoever_does_not_fit_waits() -> None:
    made, visit = replica(0, 0.5, room=6000)
    outcome = serve([made], [visit, visit, visit], 100.0, np.random.default_rng(0))
    assert outcome.finished == 3
    assert made.tally.decoding == 3 * 199
    assert made.tally.passes == 3 * (3 + 199), "one after the other"


def test_the_controller_learns_what_a_replica_does() -> None:
    policy = ControllerPolicy(profiled(H100), 16)
    made = Replica(H100, policy, np.random.default_rng(1), max_batch=64)
    coming = [SimulatedRequest(0.01 * number, 200, 200, 0.9) for number in range(64)]
    outcome = serve([made], coming, 60.0, np.random.default_rng(0))
    assert outcome.finished == 64
    assert outcome.tokens_per_pass > 3
    assert not policy.controller.survival, "nobody is remembered"


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


def test_a_fleet_needs_fewer_machines_where_guesses_stand() -> None:
    outcomes = {who: simulate(SMALL, who) for who in (PLAIN, FIXED, OURS)}
    assert outcomes[OURS].between_tokens[0] < 0.6 * outcomes[PLAIN].between_tokens[0]
    assert outcomes[PLAIN].tokens_per_pass == pytest.approx(1.0, abs=0.01)  # the last pass is not over
    needed = {
        who: machines(SMALL.model_copy(update={"arrivals": Poisson(rate=500)}), who) for who in outcomes
    }
    assert needed[OURS] < needed[PLAIN]
    with pytest.raises(ConfigurationError, match="token_seconds"):
        machines(SMALL.model_copy(update={"token_seconds": None}), PLAIN)
    with pytest.raises(ConfigurationError, match="no machine keeps"):
        machines(SMALL.model_copy(update={"token_seconds": 1e-6}), PLAIN)
    with pytest.raises(ConfigurationError, match="does not fit"):
        simulate(SMALL.model_copy(update={"model": "llama-3.1-70b"}), PLAIN)


def test_scenarios_come_along_and_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    assert known() == ["agents", "chat", "fleet", "laptop"]
    for name in known():
        assert Scenario.read(name).roofline.room > 0
    assert Scenario.read("fleet").scaled(10).arrivals == Poisson(rate=500)
    file = tmp_path / "mine.yaml"
    for text, message in (
        ("name: x", "device"),
        ("[1, 2]", "YAML object"),
        ("name: [", "YAML object"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=message):
            Scenario.read(file)
    with pytest.raises(ConfigurationError, match="laptop"):
        Scenario.read("nowhere")


def test_everybody_is_tried_on_the_same_texts() -> None:
    cell = Cell(64, 0.5, 4, "stationary")
    texts = Texts(cell)
    assert (texts[3] == Texts(cell)[3]).all()
    right = np.mean([(texts[number] > 0).mean() for number in range(40)])
    assert right == pytest.approx(0.5, abs=0.03)
    shifting = Texts(Cell(64, 0.9, 4, "shifting"))
    poor, good = sorted([(shifting[0][:100] > 0).mean(), (shifting[0][130:] > 0).mean()])
    assert (poor < 0.05, good > 0.8) == (True, True)
    mixed = Texts(Cell(64, 0.9, 4, "mixed"))
    assert [(mixed[number] > 0).mean() > 0.5 for number in (0, 1)] == [True, False]
    assert speed(cell, texts, FixedLengthPolicy(0)) == pytest.approx(4 / (0.02 * (1 + (4 / 64) ** 4) ** 0.25))


def test_the_controller_keeps_its_promises_all_over_the_grid() -> None:
    """A part of it; `forerun simulate --grid` plays all."""
    cells = [cell for cell in grid(chances=(0.0, 0.6, 0.95), batches=(1, 16, 64)) if cell.knee != 512]
    found = list(play(cells))
    assert len(found) == 4 * 3 * 3 * 2 + 2 * 2
    for cell in found:
        assert cell["over_plain"] >= 0.98, cell
        assert cell["text"] != "stationary" or cell["over_best_fixed"] >= 0.97, cell
        assert cell["text"] != "mixed" or cell["over_best_fixed"] >= 1.05, cell
        assert cell["spent_finding_out"] <= 0.01, cell
    assert {cell["best_fixed"] for cell in found} >= {0, max(LENGTHS)}


def test_a_controller_that_never_learns_fails_the_same_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.control.survival.Survival.learn", lambda *_: None)
    (cell,) = play([Cell(8, 0.0, 1, "stationary")])
    assert cell["over_plain"] > 0.98, "the accounts stop it"
    monkeypatch.setattr("forerun.control.exploration.NetGain.is_losing", False)
    (cell,) = play([Cell(8, 0.0, 1, "stationary")])
    assert cell["over_plain"] < 0.98


def test_the_command(tmp_path: Path) -> None:
    scenario, plot = tmp_path / "small.yaml", tmp_path / "small.png"
    scenario.write_text(SMALL.model_dump_json())  # JSON is YAML
    run = CliRunner().invoke(app, ["simulate", str(scenario), "--plot", str(plot)])
    assert run.exit_code == 0, run.output
    assert "fixed at 4" in run.stdout
    assert "replicas needed" in run.stdout
    assert plot.read_bytes()[1:4] == b"PNG"
    run = CliRunner().invoke(app, ["simulate", str(scenario), "--replicas", "1", "--json"])
    answers = {each["who"]: each for each in json.loads(run.stdout)["answers"]}
    assert answers["forerun"]["machines"] <= answers["plain"]["machines"]
    assert CliRunner().invoke(app, ["simulate"]).exit_code == 2
    run = CliRunner().invoke(app, ["simulate", "nowhere"])
    assert (run.exit_code, "there is agents" in run.output) == (1, True)
