"""A server with /v1/models, /v1/completions and /metrics, and with network faults on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np

from forerun.types import SamplingParams
from zoo.hosting import sampling_of, serve_on_loopback
from zoo.speculation import Defect, Logits, SeededDecoder, SpeculativeDecoder, softmax


@dataclass
class ZooServer:
    """The models of a zoo server, its defect and its network faults."""

    target: Logits
    draft: Logits
    defect: Defect = Defect.NONE
    seed: int = 0
    faults: list[str] = field(default_factory=list)
    """Faults of the next requests, in order: stall, hang, close, 500, malformed, odd."""

    always: str = ""
    """The fault of every request from number `after` on."""

    after: int = 0
    show_ids: bool = True
    num_accepted: int = 0
    num_requests: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)

    def complete(self, body: dict[str, Any], number: int) -> dict[str, Any]:
        """The response to a request; it depends on the number of the request and not on timing."""
        sampling = sampling_of(body)
        prompt = body["prompt"] if isinstance(body["prompt"], list) else [ord(x) % 16 for x in body["prompt"]]
        noise = np.random.default_rng([self.seed, number])
        choices = [self._choice(body, prompt, sampling, noise) for _ in range(body.get("n", 1))]
        return {"choices": choices, "prompt_token_ids": prompt}

    def _choice(
        self, body: dict[str, Any], prompt: list[int], sampling: SamplingParams, noise: np.random.Generator
    ) -> dict[str, Any]:
        if sampling.seed is not None and not sampling.greedy:
            tokens, accepted = SeededDecoder(self.target, self.draft, self.defect).generate(
                prompt, sampling, body["max_tokens"]
            )
        else:
            decoder = SpeculativeDecoder(self.target, self.draft, self.defect)
            tokens, accepted = decoder.generate(prompt, sampling, body["max_tokens"], noise)
        with self.lock:
            self.num_accepted += accepted
        choice: dict[str, Any] = {"finish_reason": "length", "text": ""}
        if self.show_ids:
            choice["token_ids"] = tokens
        if body.get("logprobs"):
            choice["logprobs"] = self._logprobs(prompt, tokens)
        return choice

    def _logprobs(self, prompt: list[int], tokens: list[int]) -> dict[str, Any]:
        tops = []
        for at in range(len(tokens)):
            p = softmax(self.target((*prompt, *tokens[:at])))
            tops.append({f"token_id:{token}": float(np.log(p[token])) for token in np.argsort(-p)[:20]})
        return {"tokens": [f"token_id:{token}" for token in tokens], "top_logprobs": tops}

    def fault_of(self, number: int) -> str:
        with self.lock:
            if self.faults:
                return self.faults.pop(0)
        return self.always if number >= self.after else ""


STALL = 0.6
"""Seconds without a response from a server that stalls; one that hangs never responds."""


@contextmanager
def run_server(server: ZooServer) -> Iterator[str]:
    """Run a zoo server; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # header and body in one packet: a second one would wait for the ACK of the first

        def do_GET(self) -> None:
            if self.path == "/metrics":
                line = f"zoo:spec_decode_num_accepted_tokens_total {float(server.num_accepted)}\n"
                self._send(line.encode(), 200)
            else:
                self._send(json.dumps({"data": [{"id": "tiny", "owned_by": "vllm"}]}).encode(), 200)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with server.lock:
                number = server.num_requests
                server.num_requests += 1
            fault = server.fault_of(number)
            if fault == "500":
                self._send(b"internal error", 500)
            elif fault in ("stall", "hang"):
                server.stopped.wait(STALL if fault == "stall" else None)
                self.close_connection = True
            else:
                response = {"unexpected": True} if fault == "odd" else server.complete(body, number)
                data = json.dumps(response).encode()
                cut = {"close": data[: len(data) // 2], "malformed": data[:-5]}
                self._send(cut.get(fault, data), 200, fault)

        def _send(self, data: bytes, status: int, fault: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data) * (2 if fault == "close" else 1)))
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = fault == "close"

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with serve_on_loopback(Handler) as url:
        try:
            yield url
        finally:
            server.stopped.set()
