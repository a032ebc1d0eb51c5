"""Servers are started on a port that is kept for them, are waited for, and are stopped."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import httpx
import pytest

from forerun.errors import ServerFailed
from forerun.servers import processes
from forerun.servers.processes import started

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
    """What anybody is given who asks for any port, and would share it."""
    with socket.socket() as asked:
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        asked.bind(("127.0.0.1", 0))
        port: int = asked.getsockname()[1]
        return port


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a port be kept for another process")
def test_nobody_else_is_given_the_port_before_the_server_binds_it() -> None:
    with processes._kept_port() as port:
        assert all(any_port() != port for _ in range(60_000))
        with socket.create_server(("127.0.0.1", port)):  # the server, which asks to use it again
            pass


def test_a_port_that_is_not_kept_is_given_to_another() -> None:
    """The twin without a keeper: what the test above looks for does happen."""
    with processes._kept_port() as port:
        pass
    assert any(any_port() == port for _ in range(2_000_000))


def test_a_server_is_waited_for_and_stopped(tmp_path: Path) -> None:
    with started(command(SERVES), tmp_path / "log") as server:
        assert httpx.get(f"{server.v1}/models").is_success
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.v1}/models")


def test_what_a_server_said_before_it_ended_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match=r"ended with 1:\nthere is no such model"),
        started(command(ENDS), tmp_path / "log"),
    ):
        pass


def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match="did not answer in 1 s"),
        started(command(WAITS), tmp_path / "log", patience=1.0),
    ):
        pass
