"""Who takes part in a benchmark: servers that we start, and any that run already.

Everybody has a plain one beside it, the same engine without speculation: its words are those to be said, and
its speed is what counts as 1.
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
from forerun.engines.vllm.launch import preloaded
from forerun.errors import ConfigurationError, did_you_mean
from forerun.servers.processes import STARTUP_TIMEOUT, Server, forerun_command, started, vllm_command

VLLM: Final = "vllm"
TRANSFORMERS: Final = "transformers"
LLAMA: Final = "llama.cpp"
FORERUN: Final = "forerun"
FORERUN_DRAFT: Final = "forerun-draft"
OURS: Final = (FORERUN, FORERUN_DRAFT)

GUESSES: Final = 5
"""What stock vLLM guesses: as the examples of its documentation, for n-grams and draft models."""

LLAMA_GUESSES: Final = 2
"""What llama.cpp's prompt lookup guesses: as llama-cpp-python's documentation advises for CPUs."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model under test and how its servers are started.

    Without a `max_length` each server has its own default. `vllm_flags` are given to every vLLM server.
    """

    path: Path
    dtype: str = "bfloat16"
    draft: Path | None = None
    gguf: Path | None = None
    max_length: int | None = None
    vllm_flags: tuple[str, ...] = ()
    startup_timeout: float = STARTUP_TIMEOUT

    def demand_draft(self, who: str) -> Path:
        """The draft model, which somebody cannot do without."""
        if self.draft is None:
            raise ConfigurationError(f"{who} needs a draft model: give --draft-model")
        return self.draft


@dataclass(frozen=True, slots=True)
class System:
    """A server: its name, its plain one's, what it runs, and where it is or how it is started."""

    name: str
    baseline: str
    precision: str
    url: str = ""
    command: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """What a record says of it: no place on anybody's machine."""
        return {
            "plain": self.baseline,
            "precision": self.precision,
            "command": list(map(without_folders, self.command)),
        }

    def start(self, log: Path, startup_timeout: float) -> AbstractContextManager[Server]:
        """Start it; it answers once this is entered."""
        return started(self.command, log, environment=quiet(), startup_timeout=startup_timeout)


WITHOUT_CHUNKED_PREFILL: Final = ("--per-request-spec-decode-metrics", "detailed")
"""So that a vLLM tells, for every step, how many guesses were checked and how many stood."""

_FOLDERS: Final = re.compile(r"(?:/[\w.@-]+)+/")

NO_CHUNKED_PREFILL: Final = "--no-enable-chunked-prefill"
"""Stock vLLM 0.32 on a CPU fails on a request with a seed whose prefill is chunked."""

CPU_ENVIRONMENT: Final = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
"""What vLLM is told on CPUs unless the environment says otherwise: several servers share the memory, and each
uses all cores. By default vLLM reserves one core, which may be half of them, and other engines do not.
"""

LLAMA_CONTEXT: Final = 4096
"""Context length of llama.cpp without a `max_length`: its own default is 2048."""

_QUANTISED: Final = re.compile(r"(?:^|[.-])((?:i?q\d|b?f\d\d)\w*)$", flags=re.IGNORECASE)

Command = Callable[[ServedModel], Sequence[str]]


def find_systems(model: ServedModel | None, names: Sequence[str], plain: dict[str, str]) -> list[System]:
    """Those of these names, each with its plain one: names we know, or NAME=URL of a server that runs.

    The plain one of a server that runs is named in `plain`; without a name there is nothing to compare with,
    and it is its own.
    """
    found: dict[str, System] = {}
    for given in names:
        name, _, url = given.partition("=")
        if url:
            found[name] = System(name, plain.get(name, name), "as it is served", url=url)
        else:
            for each in _known(name):
                found.setdefault(each, _start(model, each))
    if unknown := [name for name in plain if name not in found or not found[name].url]:
        raise ConfigurationError(f"a baseline is for a NAME=URL that takes part; {unknown[0]} is none")
    for one in found.values():
        if one.baseline not in found:
            raise ConfigurationError(f"{one.baseline}, the plain one of {one.name}, takes no part")
    return list(found.values())


def _known(name: str) -> tuple[str, str]:
    """Somebody's plain one, and itself."""
    if name not in _COMMANDS:
        raise ConfigurationError(f"nobody is called {name!r}; {did_you_mean(name, [*_COMMANDS, 'NAME=URL'])}")
    return _COMMANDS[name][0], name


def _start(model: ServedModel | None, name: str) -> System:
    plain, command = _COMMANDS[name]
    if model is None:
        raise ConfigurationError(f"{name} has to be started: give --model")
    precision = precision_of(model.gguf) if plain == LLAMA and model.gguf else model.dtype
    return System(name, plain, precision, command=tuple(command(model)))


def precision_of(gguf: Path) -> str:
    """How the weights of a file are kept, as its name ends."""
    found = _QUANTISED.search(gguf.stem)
    return found[1] if found else gguf.stem


def quiet() -> dict[str, str]:
    """The environment of every server that we start. It keeps them from the network."""
    offline = os.environ.get("HF_HUB_OFFLINE", "1")
    return cpu_environment() | {"HF_HUB_OFFLINE": offline} | preloaded()


def cpu_environment() -> dict[str, str]:
    """The settings of `CPU_ENVIRONMENT` as they are in this environment."""
    return {name: os.environ.get(name, value) for name, value in CPU_ENVIRONMENT.items()}


def required_flags(temperatures: Sequence[float]) -> tuple[str, ...]:
    """The flags without which a vLLM server does not survive a benchmark at these temperatures."""
    return (NO_CHUNKED_PREFILL,) if any(temperatures) and _is_cpu_only() else ()


def _is_cpu_only() -> bool:
    """Whether the installed vLLM is a CPU build: by its name or version, as vLLM itself decides."""
    return installed_version("vllm-cpu") is not None or "cpu" in (installed_version("vllm") or "")


def flags_of(model: ServedModel) -> list[str]:
    """The flags of every vLLM server: all others are at vLLM's defaults."""
    length = () if model.max_length is None else ("--max-model-len", str(model.max_length))
    return ["--dtype", model.dtype, *length, *model.vllm_flags]


def without_folders(text: str) -> str:
    """A text without the directories of the paths in it."""
    return _FOLDERS.sub("", text)


def _vllm(model: ServedModel, speculation: dict[str, Any] | None = None) -> list[str]:
    told = [*WITHOUT_CHUNKED_PREFILL, "--speculative-config", json.dumps(speculation)]
    return vllm_command(model.path, *flags_of(model), *(told if speculation else ()))


def _ngram(model: ServedModel) -> list[str]:
    return _vllm(
        model,
        {
            "method": "ngram",
            "num_speculative_tokens": GUESSES,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 1,
        },
    )


def _draft(model: ServedModel) -> list[str]:
    draft = str(model.demand_draft("vllm-draft"))
    return _vllm(model, {"method": "draft_model", "model": draft, "num_speculative_tokens": GUESSES})


def _suffix(model: ServedModel) -> list[str]:
    if find_spec("arctic_inference") is None:
        raise ConfigurationError(
            "vLLM's suffix decoding needs arctic-inference: pip install arctic-inference==0.1.1"
        )
    speculation = {"method": "suffix", "num_speculative_tokens": 32, "suffix_decoding_max_cached_requests": 0}
    return _vllm(model, speculation)


def _forerun(model: ServedModel) -> list[str]:
    return forerun_command(model.path, *flags_of(model), *WITHOUT_CHUNKED_PREFILL)


def _forerun_draft(model: ServedModel) -> list[str]:
    draft = str(model.demand_draft(FORERUN_DRAFT))
    return forerun_command(model.path, "--draft-model", draft, *flags_of(model), *WITHOUT_CHUNKED_PREFILL)


def _host(model: ServedModel, how: str) -> list[str]:
    draft = ["--draft", str(model.demand_draft("transformers-assisted"))] if how == "assisted" else []
    command = [
        sys.executable,
        "-m",
        "forerun.bench.hf_server",
        str(model.path),
        "--how",
        how,
        "--dtype",
        model.dtype,
    ]
    return command + draft


def _llama(model: ServedModel, *flags: str) -> list[str]:
    if find_spec("llama_cpp") is None:
        raise ConfigurationError("llama.cpp needs its server: pip install 'llama-cpp-python[server]'")
    if model.gguf is None:
        raise ConfigurationError("llama.cpp needs its own file of the model: give --gguf")
    threads = str(len(os.sched_getaffinity(0)))
    size = [
        "--n_ctx",
        str(model.max_length or LLAMA_CONTEXT),
        "--n_threads",
        threads,
        "--n_threads_batch",
        threads,
    ]
    whole = ["--interrupt_requests", "false"]  # an answer is not broken off for the next one's sake
    return [sys.executable, "-m", "llama_cpp.server", "--model", str(model.gguf), *size, *whole, *flags]


_COMMANDS: Final[dict[str, tuple[str, Command]]] = {
    FORERUN: (VLLM, _forerun),
    FORERUN_DRAFT: (VLLM, _forerun_draft),
    VLLM: (VLLM, _vllm),
    "vllm-ngram": (VLLM, _ngram),
    "vllm-draft": (VLLM, _draft),
    "vllm-suffix": (VLLM, _suffix),
    TRANSFORMERS: (TRANSFORMERS, lambda model: _host(model, "plain")),
    "transformers-assisted": (TRANSFORMERS, lambda model: _host(model, "assisted")),
    "transformers-lookup": (TRANSFORMERS, lambda model: _host(model, "lookup")),
    LLAMA: (LLAMA, lambda model: _llama(model, "--logits_all", "false")),
    "llama.cpp-lookup": (
        LLAMA,
        lambda model: _llama(
            model,
            "--draft_model",
            "prompt-lookup-decoding",
            "--draft_model_num_pred_tokens",
            str(LLAMA_GUESSES),
        ),
    ),
}
"""By name: who is plain beside it, and what starts it."""
