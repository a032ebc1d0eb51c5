"""Servers start on a reserved port, become ready, and are stopped; failures quote the log."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import httpx
import pytest

from forerun.errors import ServerFailed
from forerun.servers import processes
from forerun.servers.processes import last_error, started

SERVES = """
import http.server, sys
class Models(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()
http.server.HTTPServer((sys.argv[2], int(sys.argv[4])), Models).serve_forever()
"""
ENDS = "raise SystemExit('there is no such model')"
WAITS = "import time; time.sleep(60)"


def command(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def any_port() -> int:
    """A port that the system assigns to a socket with SO_REUSEADDR."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port: int = other.getsockname()[1]
        return port


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reserve a port for another process")
def test_a_reserved_port_is_assigned_to_no_other_socket_before_the_server_binds_it() -> None:
    with processes._reserved_port() as port:
        assert all(any_port() != port for _ in range(60_000))
        with socket.create_server(("127.0.0.1", port)):  # the server, which sets SO_REUSEADDR
            pass


def test_a_port_that_is_not_reserved_is_assigned_to_another_socket() -> None:
    """The sabotaged twin of the test above."""
    with processes._reserved_port() as port:
        pass
    assert any(any_port() == port for _ in range(2_000_000))


def test_a_server_is_ready_inside_the_context_and_stopped_after_it(tmp_path: Path) -> None:
    with started(command(SERVES), tmp_path / "log") as server:
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


def test_a_server_that_does_not_respond_in_time_is_reported_with_its_last_error(tmp_path: Path) -> None:
    waits = "print('ValueError: no free memory', flush=True); " + WAITS
    with (
        pytest.raises(ServerFailed, match=r"1 s.*ValueError: no free memory") as failure,
        started(command(waits), tmp_path / "log", startup_timeout=1.0),
    ):
        pass
    assert str(tmp_path / "log") in str(failure.value)


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
