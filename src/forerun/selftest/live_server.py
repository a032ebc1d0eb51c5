"""The servers of a self-test: stock vLLM in its default mode, and `forerun serve` with the same flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from forerun.bench.served_model import cpu_environment, required_flags
from forerun.engines.vllm import runner_log
from forerun.engines.vllm.flags import has_flag, split_equals
from forerun.engines.vllm.launch import preload_environment
from forerun.errors import ConfigurationError
from forerun.selftest.gpu import used_memory, wait_until_released
from forerun.selftest.identity import EVERY_DRAFT_TOKEN, EXACT
from forerun.servers.dialects import VLLM
from forerun.servers.endpoint import Endpoint
from forerun.servers.processes import forerun_command, started, vllm_command

STOCK: Final = "stock vLLM"
FORERUN: Final = "forerun"

REQUEST_TIMEOUT: Final = 600.0

_FORERUN_ONLY: Final = ("--speculative-config", "--spec-method", "--spec-model", "--spec-tokens")
"""Flags for the speculating server: the baseline decodes without speculation."""

_EXACT_FLAGS: Final = ("--dtype", EXACT, "--enforce-eager")
"""Added in float32, where only outputs count: eager mode starts faster."""


@dataclass(frozen=True, slots=True)
class LiveServer:
    """A running server: the endpoint for throughput, the one that verifies every draft token, and its log."""

    endpoint: Endpoint
    every_draft: Endpoint
    log: Path

    def read_log(self) -> str:
        """The log so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


class Launcher(Protocol):
    """Starts a server by its name, in float32 or in the precision in which the model is served."""

    def __call__(
        self, name: str, *, exact: bool, environment: Mapping[str, str]
    ) -> AbstractContextManager[LiveServer]:
        """Start a server, which stops when the context ends."""


@dataclass(frozen=True, slots=True)
class VllmLauncher:
    """Starts vLLM servers on loopback with these flags; logs are written to `folder`."""

    model: str
    flags: tuple[str, ...]
    folder: Path
    startup_timeout: float
    speculation: Path | None = None

    def __post_init__(self) -> None:
        if has_flag(self.flags, "--api-key"):
            raise ConfigurationError("leave out --api-key: the self-test sends requests without a key")

    @contextmanager
    def __call__(self, name: str, *, exact: bool, environment: Mapping[str, str]) -> Iterator[LiveServer]:
        """Start a server with vLLM's log at INFO, and wait for the device's memory once it has stopped."""
        log = self.folder / f"{name.replace(' ', '-')}-{EXACT if exact else 'served'}.log"
        variables = {
            **cpu_environment(),
            **preload_environment(),
            "VLLM_LOGGING_LEVEL": "INFO",
            runner_log.VARIABLE: "1",
            **environment,
        }
        in_use = used_memory()
        try:
            with (
                started(
                    self.command(name, exact=exact),
                    log,
                    environment=variables,
                    startup_timeout=self.startup_timeout,
                ) as server,
                connected(server.url, log, is_forerun=name == FORERUN) as live,
            ):
                yield live
        finally:
            wait_until_released(in_use)

    def command(self, name: str, *, exact: bool) -> list[str]:
        """The command of a server."""
        flags = [*self.flags, *required_flags([1.0]), *(_EXACT_FLAGS if exact else ())]
        if name == STOCK:
            return vllm_command(self.model, *without_speculation(flags))
        ours = [] if self.speculation is None else ["--speculation", str(self.speculation)]
        return forerun_command(self.model, *ours, *flags)


def without_speculation(flags: Sequence[str]) -> list[str]:
    """The flags without those that configure speculation, and their values."""
    kept: list[str] = []
    parts = iter(split_equals(flags))
    for part in parts:
        if part.partition(".")[0] in _FORERUN_ONLY:
            next(parts, None)
        else:
            kept.append(part)
    return kept


@contextmanager
def connected(url: str, log: Path, *, is_forerun: bool) -> Iterator[LiveServer]:
    """Endpoints of a running server, which are closed at the end."""
    every = replace(VLLM, extra={**VLLM.extra, **EVERY_DRAFT_TOKEN}) if is_forerun else None
    endpoint = Endpoint(url, timeout=REQUEST_TIMEOUT)
    try:
        every_draft = Endpoint(url, dialect=every, timeout=REQUEST_TIMEOUT)
        try:
            yield LiveServer(endpoint, every_draft, log)
        finally:
            every_draft.close()
    finally:
        endpoint.close()
