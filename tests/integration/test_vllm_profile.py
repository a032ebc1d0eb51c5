"""Profiling of step costs logs its sizes, its result and the cache file."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM: make setup")

from forerun.control.step_cost import profile_sizes
from forerun.engines.vllm import step_profiler


class Runner:
    """A model runner whose forward passes do nothing, and that records their rows."""

    max_num_tokens = 64

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.drafter = None
        self.model = SimpleNamespace(compute_logits=lambda hidden: hidden)
        self.vllm_config = SimpleNamespace(
            speculative_config=object(),
            additional_config={},
            parallel_config=SimpleNamespace(world_size_across_dp=1),
            scheduler_config=SimpleNamespace(max_num_seqs=8),
            use_v2_model_runner=False,
        )

    def _dummy_run(self, rows: int, **_: Any) -> tuple[torch.Tensor, None]:
        self.rows.append(rows)
        return torch.zeros(rows, 4), None


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(step_profiler, "_cache_key", lambda _: "curve")
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


def test_a_cached_curve_is_used_and_its_file_logged(log: Any, tmp_path: Path) -> None:
    step_profiler.profile_steps(Runner())
    log.clear()
    runner = Runner()
    step_profiler.profile_steps(runner)
    assert runner.rows == []
    (line,) = log.messages
    assert str(tmp_path / "forerun" / "costs" / "curve.json") in line


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
