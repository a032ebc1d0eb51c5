"""Starts and stops servers on loopback for measurements and comparisons.

Owns their processes, ports and logs. If a server fails to start, the error quotes the last error of its log.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import httpx

from forerun.config import BUILD_VARIABLE
from forerun.errors import ServerFailed

STARTUP_TIMEOUT: Final = 600.0
"""Seconds until a server must respond, which includes the time in which vLLM compiles the model."""

_TAIL: Final = 200_000
"""Bytes at the end of a log that are searched for the last error."""

_MAX_LINES: Final = 3
_MAX_LINE: Final = 300

_PREFIX: Final = re.compile(
    r"\x1b\[[0-9;]*m"  # colours
    r"|^\([^)]*pid=\d+\) ?"  # the process of vLLM that logged the line
    r"|^(?:ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] ?"  # the logger's level, time and source
)
_ERROR: Final = re.compile(r"^(?:[\w.]*[A-Z]\w*(?:Error|Exception|Interrupt|Failed)\b: \S|.*\berror: \S)")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server and its log."""

    url: str
    log: Path

    @property
    def v1(self) -> str:
        """The base URL for OpenAI clients."""
        return f"{self.url}/v1"


@contextmanager
def started(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    startup_timeout: float = STARTUP_TIMEOUT,
) -> Iterator[Server]:
    """Run a command with `--host` and `--port`, wait until the server responds, and stop it on exit."""
    with (
        _reserved_port() as port,
        log.open("w") as output,
        subprocess.Popen(  # noqa: S603
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={BUILD_VARIABLE: "0", **os.environ, **(environment or {})},
            start_new_session=True,
        ) as process,
    ):
        try:
            server = Server(f"http://127.0.0.1:{port}", log)
            _wait_until_ready(server, process, startup_timeout)
            yield server
        finally:
            _stop(process)


def vllm_command(model: str | Path, *flags: str) -> list[str]:
    """The command that runs vLLM's own `serve` in this environment."""
    return [sys.executable, "-m", "forerun.engines.vllm", "serve", str(model), *flags]


def forerun_command(model: str | Path, *flags: str) -> list[str]:
    """The command that runs `forerun serve` in this environment."""
    return [sys.executable, "-m", "forerun", "serve", str(model), *flags]


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A port that no other process is assigned until the server binds it, seconds later.

    On Linux, a socket bound with SO_REUSEADDR that does not listen keeps the port out of automatic
    assignment, while a server that sets SO_REUSEADDR can still bind it. Other systems would reject the server
    as well: there the port is chosen, but not reserved.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()
        yield port


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes], startup_timeout: float) -> None:
    deadline = time.monotonic() + startup_timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerFailed(
                f"the server ended with {_exit_status(process.returncode)}: {_reason(server.log)}"
            )
        try:
            if httpx.get(f"{server.v1}/models", timeout=2.0).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.25)
    limit = f"the start-up timeout of {startup_timeout:g} s"
    raise ServerFailed(f"the server did not respond within {limit}: {_reason(server.log)}")


def _exit_status(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    killed = " (often the kernel, out of memory)" if -code == signal.SIGKILL else ""
    return f"signal {-code}{killed}"


def _reason(log: Path) -> str:
    return f"{last_error(log)}\nfull log: {log}"


def last_error(log: Path) -> str:
    """The last distinct exceptions of a log, or its last lines if it has none, shortened."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL))
        text = file.read().decode(errors="replace")
    lines = list(filter(None, map(_without_prefixes, text.splitlines())))
    distinct = dict.fromkeys(reversed(list(_errors(lines)) or [line.strip() for line in lines[-_MAX_LINES:]]))
    shown = [line[:_MAX_LINE] for line in list(distinct)[:_MAX_LINES]]
    return "\n".join(reversed(shown)) or "the log is empty"


def _errors(lines: Sequence[str]) -> Iterator[str]:
    """Lines that name an error, each with the indented line after it, which may hold the cause."""
    for line, following in pairwise([*lines, ""]):
        if _ERROR.match(line):
            yield f"{line} {following.strip()}" if following.startswith(" ") else line


def _without_prefixes(line: str) -> str:
    line, before = line.rstrip(), ""
    while line != before:
        line, before = _PREFIX.sub("", line), line
    return line


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process group, and kill it if it does not end in time."""
    for number, timeout in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=timeout)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
