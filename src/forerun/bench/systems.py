"""The systems of a benchmark: servers that the benchmark starts, and running ones given by URL.

Each system has a baseline, the same engine without speculation. Its output is the reference and its speed
is 1.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from forerun.bench.provenance import installed_version
from forerun.engines.vllm.launch import preload_environment
from forerun.errors import ConfigurationError, did_you_mean
from forerun.servers.processes import STARTUP_TIMEOUT, Server, forerun_command, started, vllm_command

VLLM: Final = "vllm"
TRANSFORMERS: Final = "transformers"
LLAMA: Final = "llama.cpp"
FORERUN: Final = "forerun"
FORERUN_DRAFT: Final = "forerun-draft"
FORERUN_SYSTEMS: Final = (FORERUN, FORERUN_DRAFT)

NUM_DRAFT_TOKENS: Final = 5
"""Draft length of stock vLLM with n-grams or a draft model, as in the examples of its documentation."""

LLAMA_NUM_DRAFT_TOKENS: Final = 2
"""Draft length of llama.cpp's prompt lookup, as llama-cpp-python's documentation recommends for CPUs."""


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


@dataclass(frozen=True, slots=True)
class System:
    """A server with its baseline's name and its precision. It runs at `url` or is started by `command`."""

    name: str
    baseline: str
    precision: str
    url: str = ""
    command: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """The system's entry in a results file, without directories of this machine."""
        return {
            "baseline": self.baseline,
            "precision": self.precision,
            "command": list(map(strip_directories, self.command)),
        }

    def start(self, log: Path, startup_timeout: float) -> AbstractContextManager[Server]:
        """Start the server; it accepts requests once the context is entered."""
        return started(self.command, log, environment=server_environment(), startup_timeout=startup_timeout)


SPEC_DECODE_METRICS: Final = ("--per-request-spec-decode-metrics", "detailed")
"""Flags that make vLLM report the draft tokens and accepted tokens of every step."""

_FOLDERS: Final = re.compile(r"(?:/[\w.@-]+)+/")

NO_CHUNKED_PREFILL: Final = "--no-enable-chunked-prefill"
"""Stock vLLM 0.32 on a CPU fails on a request with a seed if its prefill is chunked."""

CPU_ENVIRONMENT: Final = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
"""Settings of vLLM on CPUs unless the environment has others: several servers share the memory, and each
uses all cores. By default vLLM reserves one core, possibly half of them; other engines reserve none.
"""

LLAMA_CONTEXT: Final = 4096
"""Context length of llama.cpp without a `max_length`; its own default is 2048."""

_QUANTISED: Final = re.compile(r"(?:^|[.-])((?:i?q\d|b?f\d\d)\w*)$", flags=re.IGNORECASE)

Command = Callable[[ServedModel], Sequence[str]]


def find_systems(model: ServedModel | None, names: Sequence[str], baselines: dict[str, str]) -> list[System]:
    """The systems of these names with their baselines: built-in names, or NAME=URL of a running server.

    `baselines` names the baseline of a running server; without an entry the server is its own baseline.
    """
    found: dict[str, System] = {}
    for given in names:
        name, _, url = given.partition("=")
        if url:
            found[name] = System(name, baselines.get(name, name), "as it is served", url=url)
        else:
            for each in _known(name):
                found.setdefault(each, _start(model, each))
    if unknown := [name for name in baselines if name not in found or not found[name].url]:
        raise ConfigurationError(f"--baseline takes the NAME of a NAME=URL system, got {unknown[0]}")
    for one in found.values():
        if one.baseline not in found:
            raise ConfigurationError(
                f"{one.baseline}, the baseline of {one.name}, takes no part: add --against {one.baseline}"
            )
    return list(found.values())


def _known(name: str) -> tuple[str, str]:
    """The name of a built-in system, after its baseline's."""
    if name not in _COMMANDS:
        raise ConfigurationError(f"unknown system {name!r}; {did_you_mean(name, [*_COMMANDS, 'NAME=URL'])}")
    return _COMMANDS[name][0], name


def _start(model: ServedModel | None, name: str) -> System:
    baseline, command = _COMMANDS[name]
    if model is None:
        raise ConfigurationError(f"{name} is started by the benchmark and needs a model: give --model")
    precision = gguf_precision(model.gguf) if baseline == LLAMA and model.gguf else model.dtype
    return System(name, baseline, precision, command=tuple(command(model)))


def gguf_precision(gguf: Path) -> str:
    """The quantization of a GGUF file, from the end of its name."""
    found = _QUANTISED.search(gguf.stem)
    return found[1] if found else gguf.stem


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


def _vllm(model: ServedModel, speculation: dict[str, Any] | None = None) -> list[str]:
    flags = [*SPEC_DECODE_METRICS, "--speculative-config", json.dumps(speculation)] if speculation else []
    return vllm_command(model.path, *vllm_server_flags(model), *flags)


def _ngram(model: ServedModel) -> list[str]:
    return _vllm(
        model,
        {
            "method": "ngram",
            "num_speculative_tokens": NUM_DRAFT_TOKENS,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 1,
        },
    )


def _draft(model: ServedModel) -> list[str]:
    draft = str(model.require_draft("vllm-draft"))
    return _vllm(model, {"method": "draft_model", "model": draft, "num_speculative_tokens": NUM_DRAFT_TOKENS})


def _suffix(model: ServedModel) -> list[str]:
    if find_spec("arctic_inference") is None:
        raise ConfigurationError(
            "vLLM's suffix decoding needs arctic-inference: pip install arctic-inference==0.1.1"
        )
    speculation = {"method": "suffix", "num_speculative_tokens": 32, "suffix_decoding_max_cached_requests": 0}
    return _vllm(model, speculation)


def _forerun(model: ServedModel) -> list[str]:
    return forerun_command(model.path, *vllm_server_flags(model), *SPEC_DECODE_METRICS)


def _forerun_draft(model: ServedModel) -> list[str]:
    draft = str(model.require_draft(FORERUN_DRAFT))
    return forerun_command(
        model.path, "--draft-model", draft, *vllm_server_flags(model), *SPEC_DECODE_METRICS
    )


def _transformers(model: ServedModel, method: str) -> list[str]:
    draft = ["--draft", str(model.require_draft("transformers-assisted"))] if method == "assisted" else []
    command = [
        sys.executable,
        "-m",
        "forerun.bench.hf_server",
        str(model.path),
        "--method",
        method,
        "--dtype",
        model.dtype,
    ]
    return command + draft


def _llama(model: ServedModel, *flags: str) -> list[str]:
    if find_spec("llama_cpp") is None:
        raise ConfigurationError("llama.cpp needs its server: pip install 'llama-cpp-python[server]'")
    if model.gguf is None:
        raise ConfigurationError("llama.cpp needs the model as a GGUF file: give --gguf")
    threads = str(len(os.sched_getaffinity(0)))
    size = [
        "--n_ctx",
        str(model.max_length or LLAMA_CONTEXT),
        "--n_threads",
        threads,
        "--n_threads_batch",
        threads,
    ]
    queue = ["--interrupt_requests", "false"]  # by default a new request aborts the running one
    return [sys.executable, "-m", "llama_cpp.server", "--model", str(model.gguf), *size, *queue, *flags]


_COMMANDS: Final[dict[str, tuple[str, Command]]] = {
    FORERUN: (VLLM, _forerun),
    FORERUN_DRAFT: (VLLM, _forerun_draft),
    VLLM: (VLLM, _vllm),
    "vllm-ngram": (VLLM, _ngram),
    "vllm-draft": (VLLM, _draft),
    "vllm-suffix": (VLLM, _suffix),
    TRANSFORMERS: (TRANSFORMERS, lambda model: _transformers(model, "baseline")),
    "transformers-assisted": (TRANSFORMERS, lambda model: _transformers(model, "assisted")),
    "transformers-lookup": (TRANSFORMERS, lambda model: _transformers(model, "lookup")),
    LLAMA: (LLAMA, lambda model: _llama(model, "--logits_all", "false")),
    "llama.cpp-lookup": (
        LLAMA,
        lambda model: _llama(
            model,
            "--draft_model",
            "prompt-lookup-decoding",
            "--draft_model_num_pred_tokens",
            str(LLAMA_NUM_DRAFT_TOKENS),
        ),
    ),
}
"""The baseline and the command of each built-in system."""
