"""The systems of a benchmark: servers that the benchmark starts, and running ones given by URL.

Each system has a baseline, the same engine without speculation. Its output is the reference and its speed
is 1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forerun.bench.served_model import ServedModel, server_environment, strip_directories
from forerun.bench.system_commands import COMMANDS
from forerun.bench.system_names import AS_SERVED, LLAMA
from forerun.errors import ConfigurationError, did_you_mean
from forerun.servers.processes import Server, started

_QUANTISED: Final = re.compile(r"(?:^|[.-])((?:i?q\d|b?f\d\d)\w*)$", flags=re.IGNORECASE)


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


def find_systems(model: ServedModel | None, names: Sequence[str], baselines: dict[str, str]) -> list[System]:
    """The systems of these names with their baselines: built-in names, or NAME=URL of a running server.

    `baselines` names the baseline of a running server; without an entry the server is its own baseline.
    """
    found: dict[str, System] = {}
    for given in names:
        name, _, url = given.partition("=")
        if url:
            found[name] = System(name, baselines.get(name, name), AS_SERVED, url=url)
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
    if name not in COMMANDS:
        raise ConfigurationError(f"unknown system {name!r}; {did_you_mean(name, [*COMMANDS, 'NAME=URL'])}")
    return COMMANDS[name][0], name


def _start(model: ServedModel | None, name: str) -> System:
    baseline, command = COMMANDS[name]
    if model is None:
        raise ConfigurationError(f"{name} is started by the benchmark and needs a model: give --model")
    precision = gguf_precision(model.gguf) if baseline == LLAMA and model.gguf else model.dtype
    return System(name, baseline, precision, command=tuple(command(model)))


def gguf_precision(gguf: Path) -> str:
    """The quantization of a GGUF file, from the end of its name."""
    found = _QUANTISED.search(gguf.stem)
    return found[1] if found else gguf.stem
