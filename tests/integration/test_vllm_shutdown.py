"""A stopped server closes open streams after a time limit."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from forerun.engines.vllm import shutdown

uvicorn = pytest.importorskip("uvicorn", reason="comes with vLLM")


@pytest.fixture(autouse=True)
def restored_uvicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn.Config, "__init__", uvicorn.Config.__init__)


async def endless_stream(scope: Any, receive: Any, send: Any) -> None:
    """Start a response that never ends, as after the engine has stopped."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"data", "more_body": True})
    await asyncio.Event().wait()


class NotifyingServer(uvicorn.Server):  # type: ignore[misc,name-defined]  # uvicorn comes with vLLM
    """Sets an event once it accepts connections."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.accepts = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.accepts.set()


async def stop_with_an_open_stream() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        server = NotifyingServer(uvicorn.Config(endless_stream, lifespan="off", log_config=None))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        await server.accepts.wait()
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"data")
        server.should_exit = True
        try:
            await asyncio.wait_for(asyncio.shield(serving), 20)
        finally:
            writer.close()
            server.force_exit = True
            await serving


def test_the_server_stops_while_a_stream_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "CLOSE_SECONDS", 0.05)
    shutdown.bound_shutdown()
    asyncio.run(stop_with_an_open_stream())


@pytest.mark.parametrize(("given", "expected"), [({}, 5), ({"timeout_graceful_shutdown": 90}, 90)])
def test_an_explicit_time_limit_is_kept(given: dict[str, int], expected: int) -> None:
    shutdown.bound_shutdown()
    shutdown.bound_shutdown()
    assert uvicorn.Config(endless_stream, **given).timeout_graceful_shutdown == expected
