"""transformers behind an OpenAI-compatible URL. It serves one request at a time.

    python -m forerun.bench.hf_server MODEL --method lookup --port 8000

It implements only what the benchmark sends: streamed chat completions with a temperature and a seed.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer

from forerun.models.hf_baseline import DecodingMethod, HFBaseline
from forerun.models.loading import load_tokenizer
from forerun.models.tokenization import IncrementalDetokenizer, encode
from forerun.servers.streaming import DONE
from forerun.types import SamplingParams

OWNER: Final = "transformers"


class HFServer(ThreadingHTTPServer):
    """Accepts concurrent connections; `turn` serializes access to the model."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], model: HFBaseline, tokenizer: Any) -> None:
        super().__init__(address, HFRequestHandler)
        self.model = model
        self.tokenizer = tokenizer
        self.turn = threading.Lock()


class HFRequestHandler(BaseHTTPRequestHandler):
    """Handles one connection."""

    server: HFServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # each token is sent at once

    def do_GET(self) -> None:
        """Answer health checks and the list of models."""
        self._send({"data": [{"id": OWNER, "owned_by": OWNER}]})

    def do_POST(self) -> None:
        """Stream a chat completion."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = encode(self.server.tokenizer, body["messages"])
        sampling = SamplingParams(temperature=body["temperature"], seed=body.get("seed"))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        detokenizer = IncrementalDetokenizer(self.server.tokenizer)
        counts: list[int] = []

        def put(tokens: list[int]) -> None:
            counts.append(len(tokens))
            text = "".join(map(detokenizer.add, tokens))
            self._event({"choices": [{"delta": {"content": text}, "token_ids": tokens}]})

        with self.server.turn:
            passes = self.server.model.generate(prompt, sampling, body["max_tokens"], put)
        spec_decode = {
            "per_step_drafted": [rows - 1 for rows in passes.rows[1:]],
            "per_step_accepted": [count - 1 for count in counts[1:]],
        }
        self._event(
            {
                "choices": [{"delta": {"content": detokenizer.flush()}, "finish_reason": "stop"}],
                "prompt_token_ids": prompt,
                "usage": {"completion_tokens": sum(counts)},
                "metrics": {"speculative_decoding": spec_decode},
            }
        )
        self._line(DONE)
        self.close_connection = True

    def _event(self, event: dict[str, Any]) -> None:
        self._line(json.dumps(event))

    def _line(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def _send(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Suppress the access log."""


def main(
    model: Path,
    port: Annotated[int, typer.Option()],
    method: Annotated[DecodingMethod, typer.Option()] = "baseline",
    draft: Annotated[Path | None, typer.Option()] = None,
    dtype: Annotated[str, typer.Option()] = "bfloat16",
    host: Annotated[str, typer.Option()] = "127.0.0.1",
) -> None:
    """Serve until interrupted."""
    HFServer(
        (host, port), HFBaseline(model, getattr(torch, dtype), method, draft), load_tokenizer(model)
    ).serve_forever()


if __name__ == "__main__":
    typer.run(main)
