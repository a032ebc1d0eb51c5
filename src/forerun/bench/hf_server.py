"""transformers behind a URL, so that it can be asked as others are: one request at a time.

    python -m forerun.bench.hf_server MODEL --how lookup --port 8000

Only what a benchmark asks for is there: chat, streamed, at some temperature, with a seed.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer

from forerun.models.hf_baseline import HFBaseline, How
from forerun.models.loading import load_tokenizer
from forerun.models.tokenization import IncrementalDetokenizer, encode
from forerun.servers.streaming import DONE
from forerun.types import SamplingParams

OWNER: Final = "transformers"


class Host(ThreadingHTTPServer):
    """The server: connections are many, the model is one."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], model: HFBaseline, tokenizer: Any) -> None:
        super().__init__(address, Handler)
        self.model = model
        self.tokenizer = tokenizer
        self.turn = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Host
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a token does not wait for the next

    def do_GET(self) -> None:
        """Health, and what is served."""
        self._send({"data": [{"id": OWNER, "owned_by": OWNER}]})

    def do_POST(self) -> None:
        """An answer, streamed."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = encode(self.server.tokenizer, asked["messages"])
        sampling = SamplingParams(temperature=asked["temperature"], seed=asked.get("seed"))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        spelling = IncrementalDetokenizer(self.server.tokenizer)
        counts: list[int] = []

        def put(tokens: list[int]) -> None:
            counts.append(len(tokens))
            said = "".join(map(spelling.add, tokens))
            self._event({"choices": [{"delta": {"content": said}, "token_ids": tokens}]})

        with self.server.turn:
            passes = self.server.model.say(prompt, sampling, asked["max_tokens"], put)
        guessed = {
            "per_step_drafted": [rows - 1 for rows in passes.rows[1:]],
            "per_step_accepted": [count - 1 for count in counts[1:]],
        }
        self._event(
            {
                "choices": [{"delta": {"content": spelling.rest()}, "finish_reason": "stop"}],
                "prompt_token_ids": prompt,
                "usage": {"completion_tokens": sum(counts)},
                "metrics": {"speculative_decoding": guessed},
            }
        )
        self._line(DONE)
        self.close_connection = True

    def _event(self, event: dict[str, Any]) -> None:
        self._line(json.dumps(event))

    def _line(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def _send(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main(
    model: Path,
    port: Annotated[int, typer.Option()],
    how: Annotated[How, typer.Option()] = "plain",
    draft: Annotated[Path | None, typer.Option()] = None,
    dtype: Annotated[str, typer.Option()] = "bfloat16",
    host: Annotated[str, typer.Option()] = "127.0.0.1",
) -> None:
    """Serve until told to stop."""
    Host(
        (host, port), HFBaseline(model, getattr(torch, dtype), how, draft), load_tokenizer(model)
    ).serve_forever()


if __name__ == "__main__":
    typer.run(main)
