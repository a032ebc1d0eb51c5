"""Servers start on a reserved port, become ready, and are stopped; failures quote the log."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from pathlib import Path

import httpx
import pytest

from forerun.errors import ServerFailed
from forerun.servers import processes
from forerun.servers.processes import last_error, started

SERVES = [sys.executable, str(Path(__file__).parent / "programs" / "models_server.py")]
ENDS = "raise SystemExit('there is no such model')"

IP_LOCAL_PORT_RANGE = 51
"""The option of Linux 6.3 that limits the ports assigned to a socket; Python has no name for it."""


def command(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def assigned_port(only: int) -> int:
    """The port that the system assigns to a socket for which it may choose `only` and no other."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", only << 16 | only))
        other.bind(("127.0.0.1", 0))
        port: int = other.getsockname()[1]
        return port


def restricts_ports() -> bool:
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", 0))
        except OSError:
            return False
        return sys.platform == "linux"


@pytest.mark.skipif(not restricts_ports(), reason="needs IP_LOCAL_PORT_RANGE of Linux 6.3")
def test_a_reserved_port_is_assigned_to_no_other_socket_before_the_server_binds_it() -> None:
    with processes._reserved_port() as port:
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            assigned_port(port)
        with socket.create_server(("127.0.0.1", port)):  # the server, which sets SO_REUSEADDR
            pass
    assert assigned_port(port) == port, "a port that is not reserved"


def test_a_server_is_ready_inside_the_context_and_stopped_after_it(tmp_path: Path) -> None:
    with started(SERVES, tmp_path / "log") as server:
        assert httpx.get(f"{server.v1}/models").is_success
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.v1}/models")


def test_a_server_that_exits_is_reported_with_its_last_output_and_the_path_of_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match=r"exit code 1: there is no such model") as failure,
        started(command(ENDS), tmp_path / "log"),
    ):
        pass
    assert str(tmp_path / "log") in str(failure.value)


class StoppedClock:
    """A clock that reaches the deadline once the log has content; replaces the module `time`."""

    def __init__(self, log: Path, deadline: float) -> None:
        self._log, self._deadline = log, deadline

    def monotonic(self) -> float:
        return self._deadline if self._log.exists() and self._log.read_text() else 0.0

    def sleep(self, seconds: float) -> None:
        assert seconds > 0


def test_a_server_that_does_not_respond_in_time_is_reported_with_its_last_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(processes, "time", StoppedClock(log, 600.0))
    waits = "import signal; print('ValueError: no free memory', flush=True); signal.pause()"
    with (
        pytest.raises(ServerFailed, match=r"600 s.*ValueError: no free memory") as failure,
        started(command(waits), log, startup_timeout=600.0),
    ):
        pass
    assert str(log) in str(failure.value)


VLLM_LOG = (
    """\
(APIServer pid=7) INFO 11-18 10:00:00 [utils.py:1] vLLM server version 0.32.0
(EngineCore pid=9) ERROR 11-18 10:00:05 [core.py:1] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-18 10:00:05 [core.py:1] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-18 10:00:05 [core.py:1]   File "core.py", line 1, in run
(EngineCore pid=9) ERROR 11-18 10:00:05 [core.py:1] ValueError: KV cache too small; decrease max_model_len.
(EngineCore pid=9) Process EngineCore:
(EngineCore pid=9) Traceback (most recent call last):
(EngineCore pid=9) \x1b[31mValueError: KV cache too small; decrease max_model_len.\x1b[0m
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "api_server.py", line 1, in run
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.
"""
    + "[rank0]: a line of a destructor without meaning\n" * 200
)


def test_the_last_error_of_a_log_is_its_last_exceptions_without_prefixes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(VLLM_LOG)
    assert last_error(log).splitlines() == [
        "ValueError: KV cache too small; decrease max_model_len.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the log is empty"),
        (
            "loading\nvllm: error: unrecognized arguments: --foo\n",
            "vllm: error: unrecognized arguments: --foo",
        ),
        (
            "(A pid=1) x.ValidationError: 1 error\n(A pid=1)   Value error, too long\n(A pid=1)     x\nz\n",
            "x.ValidationError: 1 error Value error, too long",
        ),
        ("one\ntwo\nthree\nfour\n\n", "two\nthree\nfour"),
        ("torch.OutOfMemoryError: " + "x" * 5000, None),
    ],
)
def test_the_last_error_of_any_log_is_short(tmp_path: Path, text: str, expected: str | None) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    found = last_error(log)
    assert len(found) < 1000
    assert expected is None or found == expected
