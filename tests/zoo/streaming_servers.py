"""Servers that stream: tokens in pieces, at a pace, and sometimes not to the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from zoo.hosting import hosted


@dataclass
class Talker:
    """Says, to a question, so many tokens in pieces of some size, one piece a pause."""

    piece: int = 1
    num_tokens: int = 24
    pause: float = 0.002
    breaks_at: int = 10**9
    """From this request on it stops half-way."""

    ids: bool = True
    said: Callable[[str, int], int] = lambda question, at: (len(question) * 7 + at * at) % 50
    asked: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
        with self.lock:
            self.asked.append(body)
            number = len(self.asked)
        question = body["messages"][0]["content"]
        seeded = body.get("seed") or 0
        tokens = [self.said(question, at) + seeded for at in range(min(self.num_tokens, body["max_tokens"]))]
        for first in range(0, len(tokens), self.piece):
            time.sleep(self.pause)
            if number >= self.breaks_at and first:
                yield None
                return
            some = tokens[first : first + self.piece]
            choice: dict[str, Any] = {"delta": {"content": " ".join(map(str, some))}}
            yield {"choices": [choice | ({"token_ids": some} if self.ids else {})]}
        pieces = [len(tokens[first : first + self.piece]) for first in range(0, len(tokens), self.piece)]
        kept = [piece - 1 for piece in pieces[1:]]
        steps = {"per_step_drafted": [self.piece - 1] * len(kept), "per_step_accepted": kept}
        usage = {"completion_tokens": len(tokens)}
        yield {"choices": [], "usage": usage, "metrics": {"speculative_decoding": steps}}


@contextmanager
def talking(talker: Talker) -> Iterator[str]:
    """The URL of a running server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._begin()
            self.wfile.write(json.dumps({"data": [{"id": "talker", "owned_by": "vllm"}]}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._begin()
            for event in talker.events(body):
                if event is None:
                    return
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")

        def _begin(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with hosted(Handler) as url:
        yield url
