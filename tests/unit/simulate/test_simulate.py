"""Simulated engines: costs, traffic, replicas and scenarios."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.errors import ConfigurationError
from forerun.simulate.fleet import serve
from forerun.simulate.grid import GridCell, SimulatedTexts, measure_throughput
from forerun.simulate.hardware import LAUNCH_SECONDS, MEMORY_EFFICIENCY, Roofline
from forerun.simulate.policies import ControllerPolicy, FixedLengthPolicy, profile_roofline
from forerun.simulate.replica import Replica
from forerun.simulate.scenario import Scenario, bundled_scenarios
from forerun.simulate.table import markdown
from forerun.simulate.traffic import (
    Bursts,
    Constant,
    Daily,
    Length,
    Mixture,
    Poisson,
    Recorded,
    SimulatedRequest,
    generate_requests,
)

H100 = Roofline.of("h100", "llama-3.1-8b")


def test_a_forward_pass_reads_the_weights_and_multiplies_the_rows() -> None:
    few, many = H100(np.array([1.0, 4096.0]), 0.0)
    assert few == pytest.approx(LAUNCH_SECONDS + 2 * 8.03e9 / (MEMORY_EFFICIENCY * 3.35e12), rel=1e-3)
    assert many == pytest.approx(LAUNCH_SECONDS + 2 * 8.03e9 * 4096 / (0.6 * 989e12), rel=1e-2)
    assert H100(np.array([1.0]), 1e6)[0] > 2 * few, "the context is read too"
    assert H100.context_capacity == pytest.approx((0.9 * 80e9 - 16.06e9) / 131072, rel=1e-3)
    with pytest.raises(ConfigurationError, match="h100"):
        Roofline.of("h1000", "llama-3.1-8b")


def test_arrivals_have_the_configured_rates() -> None:
    random = np.random.default_rng(0)
    short = Length(median=10, spread=1.0)
    for arrivals, expected in (
        (Poisson(rate=20), 2000),
        (Daily(kind="daily", low=10, high=30, period=100), 2000),
        (Bursts(kind="bursts", rate=10, burst=60, every=10, length=2), 2000),
    ):
        found = list(generate_requests(arrivals, short, short, Constant(chance=0.5), 100.0, random))
        assert len(found) == pytest.approx(expected, rel=0.1)
        assert all(one.arrival <= other.arrival for one, other in pairwise(found))
        assert {request.prompt for request in found} == {10}
    mixed = Mixture(kind="mixture", chances=(0.1, 0.9), weights=(3, 1))
    acceptances = [
        each.acceptance for each in generate_requests(Poisson(rate=50), short, short, mixed, 100.0, random)
    ]
    assert np.mean(acceptances) == pytest.approx(0.3, abs=0.03)


def test_arrivals_can_be_recorded(tmp_path: Path) -> None:
    file = tmp_path / "arrivals.jsonl"
    file.write_text('{"at": 2, "prompt": 5, "output": 6}\n{"at": 1, "prompt": 3, "output": 4}\n')
    short, random = Length(median=1), np.random.default_rng(0)
    recorded = Recorded(kind="trace", file=file)
    found = list(generate_requests(recorded, short, short, Constant(chance=0.5), 10.0, random))
    assert [(each.arrival, each.prompt, each.output) for each in found] == [(1, 3, 4), (2, 5, 6)]
    file.write_text('{"at": 2}\n')
    with pytest.raises(ConfigurationError, match="prompt"):
        list(generate_requests(recorded, short, short, Constant(chance=0.5), 10.0, random))


def replica(length: int, acceptance: float, **options: Any) -> tuple[Replica, SimulatedRequest]:
    simulated = Replica(H100, FixedLengthPolicy(length), np.random.default_rng(1), max_batch=8, **options)
    return simulated, SimulatedRequest(0.0, prompt=5000, output=200, acceptance=acceptance)


def test_a_replica_prefills_in_chunks_and_emits_accepted_tokens() -> None:
    simulated, request = replica(4, 1.0)
    outcome = serve([simulated], [request], 100.0, np.random.default_rng(0))
    assert (outcome.finished, outcome.unfinished, simulated.stats.tokens) == (1, 0, 200)
    assert simulated.stats.steps == 3 + 40, (
        "3 prefill chunks with the first token, and 199 tokens in steps of 5"
    )
    assert outcome.tokens_per_step == pytest.approx(199 / 40)
    baseline, request = replica(0, 1.0)
    outcome = serve([baseline], [request], 100.0, np.random.default_rng(0))
    assert baseline.stats.steps == 3 + 199
    assert outcome.itl[0] == pytest.approx(float(H100(np.array([1.0]), 5100)[0]), rel=0.05)


def test_requests_that_do_not_fit_wait() -> None:
    simulated, request = replica(0, 0.5, kv_capacity=6000)
    outcome = serve([simulated], [request, request, request], 100.0, np.random.default_rng(0))
    assert outcome.finished == 3
    assert simulated.stats.decode_steps == 3 * 199
    assert simulated.stats.steps == 3 * (3 + 199), "one request after the other"


def test_the_controller_learns_in_a_replica() -> None:
    policy = ControllerPolicy(profile_roofline(H100), 16)
    simulated = Replica(H100, policy, np.random.default_rng(1), max_batch=64)
    requests = [SimulatedRequest(0.01 * number, 200, 200, 0.9) for number in range(64)]
    outcome = serve([simulated], requests, 60.0, np.random.default_rng(0))
    assert outcome.finished == 64
    assert outcome.tokens_per_step > 3
    assert not policy.controller.survival._slots, "finished requests leave no state"


def test_scenarios_are_bundled_and_errors_name_the_field(tmp_path: Path) -> None:
    assert bundled_scenarios() == ["agents", "chat", "fleet", "laptop", "run-ahead"]
    for name in bundled_scenarios():
        assert Scenario.read(name).roofline.context_capacity > 0
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


def test_all_policies_see_the_same_texts() -> None:
    cell = GridCell(64, 0.5, 4, "stationary")
    texts = SimulatedTexts(cell)
    assert (texts[3] == SimulatedTexts(cell)[3]).all()
    right = np.mean([(texts[number] > 0).mean() for number in range(40)])
    assert right == pytest.approx(0.5, abs=0.03)
    shifting = SimulatedTexts(GridCell(64, 0.9, 4, "shifting"))
    poor, good = sorted([(shifting[0][:100] > 0).mean(), (shifting[0][130:] > 0).mean()])
    assert (poor < 0.05, good > 0.8) == (True, True)
    mixed = SimulatedTexts(GridCell(64, 0.9, 4, "mixed"))
    assert [(mixed[number] > 0).mean() > 0.5 for number in (0, 1)] == [True, False]
    assert measure_throughput(cell, texts, FixedLengthPolicy(0)) == pytest.approx(
        4 / (0.02 * (1 + (4 / 64) ** 4) ** 0.25)
    )


def test_the_table_reads_older_records() -> None:
    values = [27, 1.0, 4.0, [0.0263, 0.0574]]
    new, old = (
        {"policy": policy} | dict(zip(keys, values, strict=True))
        for policy, keys in (
            ("baseline", ("replicas_needed", "tokens_per_step", "draft_tokens_per_step", "itl")),
            ("plain", ("machines", "tokens_per_pass", "guesses_per_pass", "between_tokens")),
        )
    )
    old["who"] = old.pop("policy")
    assert markdown({"agents": [old]}) == markdown({"agents": [new]})
    assert "| agents | baseline | 27 | 1.00 | 4.00 | 26.3 / 57.4 ms |" in markdown({"agents": [new]})
