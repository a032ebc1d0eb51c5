"""Servers on loopback, started to be measured or compared, and stopped again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from forerun.errors import ServerFailed

_TAIL: Final = 3000


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
    patience: float = 300.0,
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
            _wait_until_it_answers(server, process, patience)
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


def _wait_until_it_answers(server: Server, process: subprocess.Popen[bytes], patience: float) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerFailed(f"the server ended with {process.returncode}:\n{_tail(server.log)}")
        try:
            if httpx.get(f"{server.v1}/models", timeout=2.0).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.25)
    raise ServerFailed(f"the server did not answer in {patience:.0f} s:\n{_tail(server.log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-_TAIL:]


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
