"""The server around it: /v1/models, /v1/completions and /metrics, and a network that can be bad."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np

from forerun.types import SamplingParams
from zoo.hosting import hosted
from zoo.speculation import Defect, Logits, SeededSpeaker, Speaker, softmax


@dataclass
class Keeper:
    """What the server serves, and how badly."""

    target: Logits
    draft: Logits
    defect: Defect = Defect.NONE
    seed: int = 0
    faults: list[str] = field(default_factory=list)
    """What happens to the next requests, first to last: stall, hang, close, 500, malformed, odd."""

    always: str = ""
    """What happens to every request from the one numbered `after` on."""

    after: int = 0
    show_ids: bool = True
    num_accepted: int = 0
    num_asked: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def complete(self, body: dict[str, Any], number: int) -> dict[str, Any]:
        """The answer to a request; what was asked in which order decides it, not the clock."""
        sampling = SamplingParams(
            temperature=body["temperature"],
            top_k=body["top_k"],
            top_p=body["top_p"],
            min_p=body["min_p"],
            repetition_penalty=body["repetition_penalty"],
            presence_penalty=body["presence_penalty"],
            frequency_penalty=body["frequency_penalty"],
            seed=body.get("seed"),
        )
        prompt = body["prompt"] if isinstance(body["prompt"], list) else [ord(x) % 16 for x in body["prompt"]]
        noise = np.random.default_rng([self.seed, number])
        choices = [self._choice(body, prompt, sampling, noise) for _ in range(body["n"])]
        return {"choices": choices, "prompt_token_ids": prompt}

    def _choice(
        self, body: dict[str, Any], prompt: list[int], sampling: SamplingParams, noise: np.random.Generator
    ) -> dict[str, Any]:
        if sampling.seed is not None and not sampling.greedy:
            said, accepted = SeededSpeaker(self.target, self.draft, self.defect).say(
                prompt, sampling, body["max_tokens"]
            )
        else:
            speaker = Speaker(self.target, self.draft, self.defect)
            said, accepted = speaker.say(prompt, sampling, body["max_tokens"], noise)
        with self.lock:
            self.num_accepted += accepted
        choice: dict[str, Any] = {"finish_reason": "length", "text": ""}
        if self.show_ids:
            choice["token_ids"] = said
        if body.get("logprobs"):
            choice["logprobs"] = self._logprobs(prompt, said)
        return choice

    def _logprobs(self, prompt: list[int], said: list[int]) -> dict[str, Any]:
        tops = []
        for at in range(len(said)):
            p = softmax(self.target((*prompt, *said[:at])))
            tops.append({f"token_id:{token}": float(np.log(p[token])) for token in np.argsort(-p)[:20]})
        return {"tokens": [f"token_id:{token}" for token in said], "top_logprobs": tops}

    def fault_of(self, number: int) -> str:
        with self.lock:
            if self.faults:
                return self.faults.pop(0)
        return self.always if number >= self.after else ""


STALL = 0.6
"""Seconds for which a server that stalls says nothing."""

HANG = 40.0
"""Seconds for which a server that hangs says nothing."""


@contextmanager
def serving(keeper: Keeper) -> Iterator[str]:
    """The URL of a running server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: a second one waits for the first to be heard of

        def do_GET(self) -> None:
            if self.path == "/metrics":
                line = f"zoo:spec_decode_num_accepted_tokens_total {float(keeper.num_accepted)}\n"
                self._send(line.encode(), 200)
            else:
                self._send(json.dumps({"data": [{"id": "tiny", "owned_by": "vllm"}]}).encode(), 200)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with keeper.lock:
                number = keeper.num_asked
                keeper.num_asked += 1
            fault = keeper.fault_of(number)
            if fault == "500":
                self._send(b"out of luck", 500)
            elif fault in ("stall", "hang"):
                time.sleep(STALL if fault == "stall" else HANG)
                self.close_connection = True
            else:
                answer = {"strange": True} if fault == "odd" else keeper.complete(body, number)
                data = json.dumps(answer).encode()
                whole = len(data)
                self._send({"close": data[: whole // 2], "malformed": data[:-5]}.get(fault, data), 200, fault)

        def _send(self, data: bytes, status: int, fault: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data) * (2 if fault == "close" else 1)))
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = fault == "close"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with hosted(Handler) as url:
        yield url
