"""Servers on loopback, started to be measured or compared, and stopped again.

Owns their processes, ports and logs. A server that fails to start is reported by the last error of its log.
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

from forerun.errors import ServerFailed

STARTUP_TIMEOUT: Final = 600.0
"""Seconds until a server has to answer: vLLM compiles a model before it does."""

_TAIL: Final = 200_000
"""The bytes at the end of a log in which its last error is searched."""

_MAX_LINES: Final = 3
_MAX_LINE: Final = 300

_PREFIX: Final = re.compile(
    r"\x1b\[[0-9;]*m"  # colours
    r"|^\([^)]*pid=\d+\) ?"  # the process of vLLM that logged the line
    r"|^(?:ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] ?"  # the logger's level, time and place
)
_ERROR: Final = re.compile(r"^(?:[\w.]*[A-Z]\w*(?:Error|Exception|Interrupt|Failed)\b: \S|.*\berror: \S)")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers, and where its log is."""

    url: str
    log: Path

    @property
    def v1(self) -> str:
        """What an OpenAI client takes for its base."""
        return f"{self.url}/v1"


@contextmanager
def started(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    startup_timeout: float = STARTUP_TIMEOUT,
) -> Iterator[Server]:
    """Run a command that serves on the `--port` it is told, wait until it answers, and stop it at last."""
    with (
        _kept_port() as port,
        log.open("w") as output,
        subprocess.Popen(  # noqa: S603
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        ) as process,
    ):
        try:
            server = Server(f"http://127.0.0.1:{port}", log)
            _wait_until_it_answers(server, process, startup_timeout)
            yield server
        finally:
            _stop(process)


def vllm_command(model: str | Path, *flags: str) -> list[str]:
    """Stock vLLM's `serve`, in this environment."""
    return [sys.executable, "-m", "forerun.engines.vllm", "serve", str(model), *flags]


def forerun_command(model: str | Path, *flags: str) -> list[str]:
    """`forerun serve`, in this environment."""
    return [sys.executable, "-m", "forerun", "serve", str(model), *flags]


@contextmanager
def _kept_port() -> Iterator[int]:
    """A port that nobody else is given until the server binds it, seconds after it was told to.

    Linux lets the server, which asks for a port that may be in use again, have what is bound so and not
    listened on; whoever asks for any port, to listen or to connect from, gets another. Other systems would
    refuse the server, too: there the port is only chosen.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        port: int = keeper.getsockname()[1]
        if sys.platform != "linux":
            keeper.close()
        yield port


def _wait_until_it_answers(server: Server, process: subprocess.Popen[bytes], startup_timeout: float) -> None:
    deadline = time.monotonic() + startup_timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerFailed(f"the server ended with {_ending(process.returncode)}: {_reason(server.log)}")
        try:
            if httpx.get(f"{server.v1}/models", timeout=2.0).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.25)
    limit = f"the start-up timeout of {startup_timeout:g} s"
    raise ServerFailed(f"the server did not answer within {limit}: {_reason(server.log)}")


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    killed = " (often the kernel, out of memory)" if -code == signal.SIGKILL else ""
    return f"signal {-code}{killed}"


def _reason(log: Path) -> str:
    return f"{last_error(log)}\nfull log: {log}"


def last_error(log: Path) -> str:
    """The last distinct exceptions of a log, or its last lines if it has none: a few short lines."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL))
        text = file.read().decode(errors="replace")
    lines = list(filter(None, map(_without_prefixes, text.splitlines())))
    last = dict.fromkeys(reversed(list(_errors(lines)) or [line.strip() for line in lines[-_MAX_LINES:]]))
    kept = [line[:_MAX_LINE] for line in list(last)[:_MAX_LINES]]
    return "\n".join(reversed(kept)) or "the log is empty"


def _errors(lines: Sequence[str]) -> Iterator[str]:
    """The lines that name an error, each with the indented line behind it, where some errors say why."""
    for line, following in pairwise([*lines, ""]):
        if _ERROR.match(line):
            yield f"{line} {following.strip()}" if following.startswith(" ") else line


def _without_prefixes(line: str) -> str:
    line, before = line.rstrip(), ""
    while line != before:
        line, before = _PREFIX.sub("", line), line
    return line


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, then end it, with everything it started."""
    for how, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, how)
            process.wait(timeout=patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
