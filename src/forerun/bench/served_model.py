"""The model under test, and how its servers are started."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.bench.provenance import installed_version
from forerun.engines.vllm.launch import preload_environment
from forerun.errors import ConfigurationError
from forerun.servers.processes import STARTUP_TIMEOUT

SPEC_DECODE_METRICS: Final = ("--per-request-spec-decode-metrics", "detailed")
"""Flags that make vLLM report the draft tokens and accepted tokens of every step."""

NO_CHUNKED_PREFILL: Final = "--no-enable-chunked-prefill"
"""Stock vLLM 0.32 on a CPU fails on a request with a seed if its prefill is chunked."""

CPU_ENVIRONMENT: Final = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
"""Settings of vLLM on CPUs unless the environment has others: several servers share the memory, and each
uses all cores. By default vLLM reserves one core, possibly half of them; other engines reserve none.
"""

_FOLDERS: Final = re.compile(r"(?:/[\w.@-]+)+/")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model under test and how its servers are started.

    Without a `max_length` each server uses its own default. Every vLLM server gets `vllm_flags`.
    """

    path: Path
    dtype: str = "bfloat16"
    draft: Path | None = None
    gguf: Path | None = None
    max_length: int | None = None
    vllm_flags: tuple[str, ...] = ()
    startup_timeout: float = STARTUP_TIMEOUT

    def require_draft(self, system: str) -> Path:
        """The draft model; raises if none was given."""
        if self.draft is None:
            raise ConfigurationError(f"{system} needs a draft model: give --draft-model")
        return self.draft


def server_environment() -> dict[str, str]:
    """The environment of started servers: offline unless HF_HUB_OFFLINE is set otherwise."""
    offline = os.environ.get("HF_HUB_OFFLINE", "1")
    return cpu_environment() | {"HF_HUB_OFFLINE": offline} | preload_environment()


def cpu_environment() -> dict[str, str]:
    """The settings of `CPU_ENVIRONMENT`, overridden by this process's environment."""
    return {name: os.environ.get(name, value) for name, value in CPU_ENVIRONMENT.items()}


def required_flags(temperatures: Sequence[float]) -> tuple[str, ...]:
    """The flags without which a vLLM server fails in a benchmark at these temperatures."""
    return (NO_CHUNKED_PREFILL,) if any(temperatures) and _is_cpu_only() else ()


def _is_cpu_only() -> bool:
    """Whether the installed vLLM is a CPU build, by its name or version, as vLLM itself decides."""
    return installed_version("vllm-cpu") is not None or "cpu" in (installed_version("vllm") or "")


def vllm_server_flags(model: ServedModel) -> list[str]:
    """The flags of every vLLM server; all others have vLLM's defaults."""
    length = () if model.max_length is None else ("--max-model-len", str(model.max_length))
    return ["--dtype", model.dtype, *length, *model.vllm_flags]


def strip_directories(text: str) -> str:
    """The text with each path in it reduced to its last component."""
    return _FOLDERS.sub("", text)
