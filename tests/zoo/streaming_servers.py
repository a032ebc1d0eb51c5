"""A server that streams tokens at a fixed pace and can break off."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from zoo.hosting import serve_on_loopback


@dataclass
class StreamingServer:
    """Streams `num_tokens` per request, `tokens_per_event` of them after every pause."""

    tokens_per_event: int = 1
    num_tokens: int = 24
    pause_seconds: float = 0.002
    breaks_from: int = 10**9
    """Responses break off from this request on."""

    shows_ids: bool = True
    token_at: Callable[[str, int], int] = lambda question, at: (len(question) * 7 + at * at) % 50
    requests: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
        with self.lock:
            self.requests.append(body)
            number = len(self.requests)
        question = body["messages"][0]["content"]
        seeded = body.get("seed") or 0
        tokens = [
            self.token_at(question, at) + seeded for at in range(min(self.num_tokens, body["max_tokens"]))
        ]
        for first in range(0, len(tokens), self.tokens_per_event):
            time.sleep(self.pause_seconds)
            if number >= self.breaks_from and first:
                yield None
                return
            chunk = tokens[first : first + self.tokens_per_event]
            choice: dict[str, Any] = {"delta": {"content": " ".join(map(str, chunk))}}
            yield {"choices": [choice | ({"token_ids": chunk} if self.shows_ids else {})]}
        starts = range(self.tokens_per_event, len(tokens), self.tokens_per_event)
        accepted = [len(tokens[start : start + self.tokens_per_event]) - 1 for start in starts]
        drafted = [self.tokens_per_event - 1] * len(accepted)
        steps = {"per_step_drafted": drafted, "per_step_accepted": accepted}
        usage = {"completion_tokens": len(tokens)}
        yield {"choices": [], "usage": usage, "metrics": {"speculative_decoding": steps}}


@contextmanager
def run_streaming_server(server: StreamingServer) -> Iterator[str]:
    """Run the server; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._begin()
            self.wfile.write(json.dumps({"data": [{"id": "tiny", "owned_by": "vllm"}]}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._begin()
            for event in server.events(body):
                if event is None:
                    return
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")

        def _begin(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with serve_on_loopback(Handler) as url:
        yield url
