"""Profiling of step costs logs its sizes, its result and the cache file."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM: make setup")

from forerun.control import machine_load
from forerun.control.cost_sweeps import profile_sizes
from forerun.engines.vllm import step_profiler


class Runner:
    """A model runner whose forward passes do nothing, and that records their rows."""

    max_num_tokens = 64

    def __init__(self, slope: float = 0.01, num_ranks: int = 1) -> None:
        self.rows: list[int] = []
        self.slope = slope
        self.drafter = None
        self.model = SimpleNamespace(compute_logits=lambda hidden: hidden)
        self.vllm_config = SimpleNamespace(
            speculative_config=object(),
            additional_config={},
            parallel_config=SimpleNamespace(world_size_across_dp=num_ranks),
            scheduler_config=SimpleNamespace(max_num_seqs=8),
            use_v2_model_runner=False,
        )

    def _dummy_run(self, rows: int, **_: Any) -> tuple[torch.Tensor, None]:
        self.rows.append(rows)
        return torch.zeros(rows, 4), None


def timed_pass(runner: Runner, rows: int) -> float:
    """Made-up seconds of a forward pass: `slope` per row."""
    runner._dummy_run(rows)
    return 0.01 * (1 + runner.slope * rows)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(step_profiler, "_cache_key", lambda _: "curve")
    monkeypatch.setattr(step_profiler, "_seconds", timed_pass)
    monkeypatch.setattr(machine_load, "PROC", tmp_path / "no-proc")
    monkeypatch.setattr("forerun.engines.vllm.stats.logger.propagate", True)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.INFO, logger="vllm.forerun")
    return caplog


def test_profiling_logs_its_sizes_and_its_result(log: Any, tmp_path: Path) -> None:
    runner = Runner()
    step_profiler.profile_steps(runner)
    assert set(runner.rows) == set(profile_sizes(64))
    first, *_, last = log.messages
    assert f"{len(profile_sizes(64))} sizes" in first
    assert "ms" in last
    assert str(tmp_path / "forerun" / "costs" / "curve.json") in last


def test_a_cached_curve_is_checked_and_used_and_its_file_logged(log: Any, tmp_path: Path) -> None:
    step_profiler.profile_steps(Runner())
    log.clear()
    runner = Runner()
    step_profiler.profile_steps(runner)
    assert set(runner.rows) == {1, 16, 17, 64}
    (line,) = log.messages
    assert str(tmp_path / "forerun" / "costs" / "curve.json") in line
    assert "4 sizes" in line


def test_a_cached_curve_of_another_machine_is_profiled_anew(log: Any) -> None:
    step_profiler.profile_steps(Runner())
    log.clear()
    runner = Runner(slope=0.1)
    step_profiler.profile_steps(runner)
    assert set(runner.rows) == set(profile_sizes(64))
    assert "64 rows cost 6.73 times 1, cached 1.62 times" in log.messages[0]
    cost = step_profiler.load_cost(runner.vllm_config)
    assert cost is not None
    assert cost.at(64) == pytest.approx(0.01 * 7.4)


@pytest.mark.usefixtures("log")
def test_every_one_of_several_ranks_runs_the_same_passes_whatever_is_cached() -> None:
    rows = []
    for _ in range(2):
        runner = Runner(num_ranks=2)
        step_profiler.profile_steps(runner)
        rows.append(runner.rows)
    assert rows[0] == rows[1]
    assert len(rows[0]) > len(profile_sizes(64))


@pytest.mark.usefixtures("log")
def test_the_scheduler_keeps_the_mark_of_a_provisional_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, speeds = Runner(), itertools.cycle((1.0, 2.0, 3.5, 1.4, 2.7))
    monkeypatch.setattr(step_profiler, "_seconds", lambda *given: timed_pass(*given) * next(speeds))
    step_profiler.profile_steps(runner)
    cost = step_profiler.load_cost(runner.vllm_config)
    assert cost is not None
    assert cost.provisional
    cost.update(8, 0.02)
    assert step_profiler.save_cost(runner.vllm_config, cost) is not None
    saved = step_profiler.load_cost(runner.vllm_config)
    assert saved is not None
    assert saved.provisional


def test_an_unwritable_cache_is_logged(log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    step_profiler.profile_steps(Runner())
    assert "not cached" in log.messages[-1]


def test_the_cache_key_depends_on_cores_threads_runner_and_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(
        model_config=SimpleNamespace(model="m", dtype="float32", quantization=None, enforce_eager=True),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        use_v2_model_runner=False,
        additional_config={},
    )
    names = set()
    for cores, binding in (("2", ""), ("1", ""), ("2 1", ""), ("2", "0-1")):
        monkeypatch.setenv("FORERUN_CORES", cores)
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", binding)
        names.add(step_profiler._cache_key(config))
    config.use_v2_model_runner = True
    names.add(step_profiler._cache_key(config))
    config.additional_config = {"forerun": {"invariant": True}}
    names.add(step_profiler._cache_key(config))
    assert len(names) == 6
