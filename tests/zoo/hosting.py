"""HTTP servers on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from forerun.types import SamplingParams


class _Server(ThreadingHTTPServer):
    daemon_threads = True


@contextmanager
def serve_on_loopback(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server in a thread; yields its URL."""
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sampling_of(body: dict[str, Any]) -> SamplingParams:
    """The sampling settings of a request; audits send every one, including neutral values."""
    return SamplingParams(
        temperature=body["temperature"],
        top_k=body["top_k"],
        top_p=body["top_p"],
        min_p=body["min_p"],
        repetition_penalty=body["repetition_penalty"],
        presence_penalty=body["presence_penalty"],
        frequency_penalty=body["frequency_penalty"],
        seed=body.get("seed"),
    )
