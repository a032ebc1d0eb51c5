"""The model runner and the scheduling mode that vLLM will use, without vLLM."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from forerun.engines.vllm import runner_choice
from forerun.engines.vllm.runner_choice import choose_runner
from forerun.errors import ConfigurationError


class Driver:
    """A driver of Triton."""

    def __init__(self, *, active: bool) -> None:
        self.active = active

    def is_active(self) -> bool:
        return self.active


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this machine one with a build of vLLM and backends of Triton, each active or not."""
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    monkeypatch.delenv("VLLM_TARGET_DEVICE", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")

    def make(build: str, **backends: bool) -> None:
        def version(name: str) -> str:
            if name != "vllm":
                raise PackageNotFoundError(name)
            return build

        module: Any = ModuleType("triton.backends")
        module.backends = {
            name: SimpleNamespace(driver=Driver(active=active)) for name, active in backends.items()
        }
        monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
        monkeypatch.setitem(sys.modules, "triton.backends", module)
        monkeypatch.setattr(runner_choice, "find_spec", lambda _: SimpleNamespace())
        monkeypatch.setattr(runner_choice, "version", version)

    return make


def test_a_gpu_runs_v2_with_async_scheduling(machine: Any) -> None:
    machine("0.32.0", nvidia=True, amd=False)
    choice = choose_runner()
    assert (choice.runner, choice.is_async) == ("v2", True)
    assert not choose_runner(["--no-async-scheduling"]).is_async
    assert choose_runner(["--no-async-scheduling", "--async-scheduling"]).is_async


def test_a_cpu_without_a_backend_of_triton_runs_v1_and_names_it(machine: Any) -> None:
    machine("0.32.0+cpu", nvidia=False, amd=False)
    choice = choose_runner()
    assert (choice.runner, choice.is_async) == ("v1", False)
    assert "Triton has no CPU backend" in choice.summary


def test_a_cpu_with_a_backend_of_triton_runs_v2_without_async_scheduling(machine: Any) -> None:
    machine("0.32.0+cpu", cpu=True, nvidia=False)
    choice = choose_runner(["--async-scheduling"])
    assert (choice.runner, choice.is_async) == ("v2", False)
    assert "CPU" in choice.mode_reason


@pytest.mark.parametrize(("nvidia", "amd"), [(False, False), (True, True)])
def test_v2_needs_exactly_one_active_driver(machine: Any, nvidia: bool, amd: bool) -> None:
    machine("0.32.0", nvidia=nvidia, amd=amd)
    choice = choose_runner()
    assert choice.runner == "v1"
    assert str(nvidia + amd) in choice.runner_reason


@pytest.mark.parametrize(("value", "runner"), [("0", "v1"), ("1", "v2")])
def test_the_variable_of_vllm_chooses_the_runner(
    machine: Any, monkeypatch: pytest.MonkeyPatch, value: str, runner: str
) -> None:
    machine("0.32.0", nvidia=True)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", value)
    choice = choose_runner(["--enable-dbo"])
    assert choice.runner == runner
    assert "VLLM_USE_V2_MODEL_RUNNER" in choice.runner_reason


def test_another_value_of_the_variable_is_refused(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("0.32.0", nvidia=True)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "yes")
    with pytest.raises(ConfigurationError, match="0 or 1"):
        choose_runner()


def test_a_feature_that_v2_lacks_runs_on_v1(machine: Any) -> None:
    machine("0.32.0", nvidia=True)
    assert choose_runner(["--enable-dbo"]).runner == "v1"
    assert choose_runner(["--ubatch_size=2"]).runner == "v1"


def test_a_driver_that_fails_is_no_triton(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("0.32.0", nvidia=True)

    def fail(_: Any) -> bool:
        raise RuntimeError("no libcuda")

    monkeypatch.setattr(Driver, "is_active", fail)
    choice = choose_runner()
    assert choice.runner == "v1"
    assert "no libcuda" in choice.runner_reason
