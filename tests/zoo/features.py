"""A server with the features that `forerun audit suite` checks, and a defect for each of them.

Its draft model equals its target, so that every step accepts all draft tokens: a defect at draft positions
shows in three of four tokens. Output is deterministic: by seed, or by the number of the request.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

import numpy as np

from forerun.types import SamplingParams
from zoo.hosting import sampling_of, serve_on_loopback
from zoo.models import VOCAB, table
from zoo.speculation import NUM_DRAFT_TOKENS, Array, softmax, warp

MAX_LENGTH: Final = 320
STEP_SECONDS: Final = 0.0005
PIECES: Final = ['{"ok":', "true", "false", "}", '{"colours":["red","green","blue"],"count":', "3"]
GRAMMARS: Final = {"ok": [{0}, {1, 2}, {3}], "colours": [{4}, {5}, {3}]}
"""The tokens that a grammar allows at each position; after the last one the output ends."""


class FeatureDefect(Enum):
    """A defect at draft positions, or in what surrounds them."""

    NONE = "none"
    GREEDY = "a draft position takes the least likely token"
    LONG_RUN = "the token after many accepted tokens in a row is wrong"
    CACHE_REPLAY = "a prompt that was served before another one reads the other's cache"
    PREFIX_HIT = "a prompt that was served right before reads a stale cache"
    SHARED_PREFIX = "a prompt that begins like an earlier one reads a stale cache"
    CROSS_TALK = "requests in flight read each other's logits"
    ABORT_DAMAGE = "an aborted request damages the ones beside it"
    OVERSHOOT = "accepted draft tokens exceed the maximum number of tokens"
    CONTEXT_END = "draft positions near the end of the context are wrong"
    STOP_OVERRUN = "stop strings are searched at the end of a step only"
    STOP_TOKENS = "token ids go on after the stop string, up to the end of the step"
    GRAMMAR_IGNORED = "the grammar does not apply at draft positions"
    TOOL_STREAM = "the first part of a streamed tool call is lost"
    TOP_K_IGNORED = "top-k and top-p do not apply at draft positions"
    MIN_P_IGNORED = "min-p does not apply at draft positions"
    BIAS_IGNORED = "logit biases do not apply at draft positions"
    STALE_PENALTIES = "penalties do not count the draft tokens of the step"
    SHIFTED_LOGPROBS = "log-probabilities at draft positions are those of the position before"
    SEED_IGNORED = "seeds do not apply at draft positions"
    OTHER_SEEDS = "noise at draft positions is not that of decoding without speculation"
    GARBAGE = "draft positions of requests without a seed are sampled uniformly"


@dataclass
class FeatureServer:
    """The state of a server: its model, its defect, what it has served, and what is in flight."""

    defect: FeatureDefect = FeatureDefect.NONE
    seed: int = 0
    speculates: bool = True
    refuses: frozenset[str] = frozenset()
    """Fields of requests that are answered with status 400."""

    num_requests: int = 0
    num_accepted: int = 0
    in_flight: int = 0
    damaged: int = 0
    served: list[tuple[int, ...]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.table = table(self.seed, 3.0)

    def begin(self, body: dict[str, Any]) -> _Generation:
        """Start a request."""
        with self.lock:
            self.num_requests += 1
            self.in_flight += 1
            prompt = _prompt_tokens(body)
            cache = self._cache_state(prompt)
            self.served.append(prompt)
            return _Generation(self, body, prompt, self.num_requests, cache)

    def _cache_state(self, prompt: tuple[int, ...]) -> FeatureDefect:
        """The defect of a prefix cache that this prompt would meet."""
        if self.served and self.served[-1] == prompt:
            return FeatureDefect.PREFIX_HIT
        if prompt in self.served:
            return FeatureDefect.CACHE_REPLAY
        if any(len(prompt) > 64 and other[:64] == prompt[:64] for other in self.served):
            return FeatureDefect.SHARED_PREFIX
        return FeatureDefect.NONE

    def end(self, *, aborted: bool = False) -> None:
        """End a request."""
        with self.lock:
            self.in_flight -= 1
            self.damaged += 40 if aborted else 0


@dataclass
class _Generation:
    """The decoding of one request, step by step."""

    server: FeatureServer
    body: dict[str, Any]
    prompt: tuple[int, ...]
    number: int
    cache: FeatureDefect
    output: list[int] = field(default_factory=list)
    logprobs: list[Array] = field(default_factory=list)
    num_accepted: int = 0

    def __post_init__(self) -> None:
        self.sampling = sampling_of(self.body)
        self.grammar = GRAMMARS.get(_grammar_name(self.body), [])
        self.limit = len(self.grammar) or int(self.body["max_tokens"])

    def steps(self) -> Iterator[list[int]]:
        """The tokens of each step."""
        while len(self.output) < self.limit:
            if "n" not in self.body:
                time.sleep(STEP_SECONDS)
            num = 1 + (NUM_DRAFT_TOKENS if self.output and self.server.speculates else 0)
            before = tuple(self.output)
            for place in range(num):
                if len(self.output) >= self.limit and not self._has(FeatureDefect.OVERSHOOT):
                    break
                is_draft = place < num - 1
                self.output.append(self._token(before, is_draft=is_draft))
                self.num_accepted += is_draft
            with self.server.lock:
                self.server.num_accepted += num - 1
            yield self.output[len(before) :]

    def _has(self, defect: FeatureDefect) -> bool:
        return self.server.defect is defect

    def _token(self, before: tuple[int, ...], *, is_draft: bool) -> int:
        """The next token; `before` is the output at the beginning of the step."""
        text = (*self.prompt, *self.output)
        raw = self.server.table[text[-2], text[-1]]
        self._record_logprobs(text, is_draft=is_draft)
        if is_draft and self._reads_wrong_logits(text):
            return int(raw.argmin())
        logits = raw + self._bias(is_draft=is_draft)
        sampling = self._sampling(is_draft=is_draft)
        stale = is_draft and self._has(FeatureDefect.STALE_PENALTIES)
        p = warp(logits, sampling, self.prompt, before if stale else tuple(self.output))
        if sampling.greedy:
            return int(p.argmax())
        if is_draft and self._has(FeatureDefect.GARBAGE) and sampling.seed is None:
            p = np.full(len(p), 1 / len(p))
        noise = np.random.default_rng(self._noise_key(is_draft=is_draft))
        return int(np.argmax(p / noise.exponential(size=len(p))))

    def _noise_key(self, *, is_draft: bool) -> list[int]:
        seed = self.sampling.seed
        if seed is None or (is_draft and self._has(FeatureDefect.SEED_IGNORED)):
            return [1, self.server.seed, self.number, len(self.output)]
        salt = int(is_draft and self._has(FeatureDefect.OTHER_SEEDS))
        return [2 + salt, seed, len(self.output)]

    def _sampling(self, *, is_draft: bool) -> SamplingParams:
        """The settings that apply at a position."""
        given = self.sampling
        ignores = {
            FeatureDefect.TOP_K_IGNORED: {"top_k": 0, "top_p": 1.0},
            FeatureDefect.MIN_P_IGNORED: {"min_p": 0.0},
        }.get(self.server.defect if is_draft else FeatureDefect.NONE, {})
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
                 "frequency_penalty", "seed")  # fmt: skip
        return SamplingParams(**{name: getattr(given, name) for name in names} | ignores)

    def _bias(self, *, is_draft: bool) -> Array:
        bias = np.zeros(VOCAB)
        if not (is_draft and self._has(FeatureDefect.BIAS_IGNORED)):
            for token, value in (self.body.get("logit_bias") or {}).items():
                bias[int(token)] = value
        if self.grammar and not (is_draft and self._has(FeatureDefect.GRAMMAR_IGNORED)):
            bias[[token for token in range(VOCAB) if token not in self.grammar[len(self.output)]]] = -1e6
        return bias

    def _reads_wrong_logits(self, text: Sequence[int]) -> bool:
        server, defect = self.server, self.server.defect
        if defect is FeatureDefect.ABORT_DAMAGE:
            with server.lock:
                server.damaged -= server.damaged > 0
                return server.damaged > 0
        return {
            FeatureDefect.GREEDY: True,
            FeatureDefect.LONG_RUN: self.num_accepted > 40,
            FeatureDefect.CROSS_TALK: server.in_flight > 1,
            FeatureDefect.CONTEXT_END: len(text) >= MAX_LENGTH - 9,
        }.get(defect, defect is self.cache and defect is not FeatureDefect.NONE)

    def _record_logprobs(self, text: Sequence[int], *, is_draft: bool) -> None:
        shift = int(is_draft and self._has(FeatureDefect.SHIFTED_LOGPROBS))
        self.logprobs.append(softmax(self.server.table[text[-2 - shift], text[-1 - shift]]))

    def completion(self) -> dict[str, Any]:
        """The response of /v1/completions."""
        more = [self.server.begin(self.body) for _ in range(1, self.body.get("n", 1))]
        choices = [each._choice() for each in (self, *more)]
        for _ in more:
            self.server.end()
        usage = {"completion_tokens": sum(len(choice["token_ids"]) for choice in choices)}
        return {"choices": choices, "prompt_token_ids": list(self.prompt), "usage": usage}

    def _choice(self) -> dict[str, Any]:
        tokens, text, reason = self._run()
        choice: dict[str, Any] = {"text": text, "token_ids": tokens, "finish_reason": reason}
        if self.body.get("logprobs"):
            tops = [
                {f"token_id:{token}": float(np.log(p[token])) for token in p.argsort()[::-1]}
                for p in self.logprobs[: len(tokens)]
            ]
            choice["logprobs"] = {"tokens": [f"token_id:{each}" for each in tokens], "top_logprobs": tops}
        return choice

    def _run(self) -> tuple[list[int], str, str]:
        """The output tokens, the text and the finish reason."""
        stops: list[str] = self.body.get("stop") or []
        for new in self.steps():
            text = _text(self.output)
            found = [(text.index(stop), stop) for stop in stops if stop in text]
            if not found:
                continue
            at, stop = min(found)
            if self._has(FeatureDefect.STOP_OVERRUN) and not text.endswith(stop):
                return list(self.output), text, "stop"
            end = len(self.output) if self._has(FeatureDefect.STOP_TOKENS) and new else at + len(stop)
            return self.output[:end], text[:at], "stop"
        return list(self.output), _text(self.output), "length"

    def chat(self) -> dict[str, Any]:
        """The response of /v1/chat/completions."""
        content = "".join(PIECES[token] if token < len(PIECES) else "?" for token in self._run()[0])
        message: dict[str, Any] = {"content": content}
        if self.body.get("tools"):
            message = {"content": None, "tool_calls": [{"function": {"arguments": content}}]}
        return {"choices": [{"message": message, "finish_reason": "stop"}]}

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of a streamed response."""
        if "messages" not in self.body:
            for new in self.steps():
                yield {"choices": [{"text": _text(new), "token_ids": new}]}
            return
        arguments = self.chat()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
        parts = [arguments[:5], arguments[5:]]
        for part in parts[int(self._has(FeatureDefect.TOOL_STREAM)) :]:
            yield {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": part}}]}}]}


def _text(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def _prompt_tokens(body: dict[str, Any]) -> tuple[int, ...]:
    prompt = body.get("prompt") or body["messages"][0]["content"]
    return tuple(prompt) if isinstance(prompt, list) else tuple(ord(each) % VOCAB for each in prompt)


def _grammar_name(body: dict[str, Any]) -> str:
    if form := body.get("response_format"):
        return str(form["json_schema"]["name"])
    return "colours" if body.get("tools") else ""


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of `server`, which a subclass sets."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server_state: FeatureServer

    def do_GET(self) -> None:
        if self.path == "/metrics":
            accepted = float(self.server_state.num_accepted)
            self._send(f"zoo:spec_decode_num_accepted_tokens_total {accepted}\n".encode())
        else:
            model = {"id": "tiny", "owned_by": "vllm", "max_model_len": MAX_LENGTH}
            self._send(json.dumps({"data": [model]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if refused := self.server_state.refuses & {name for name, value in body.items() if value}:
            self._send(f"{min(refused)} is not supported".encode(), 400)
            return
        generation = self.server_state.begin(body)
        if body.get("stream"):
            self._stream(generation)
            return
        try:
            is_chat = self.path.endswith("/chat/completions")
            response = generation.chat() if is_chat else generation.completion()
        finally:
            self.server_state.end()
        self._send(json.dumps(response).encode())

    def _stream(self, generation: _Generation) -> None:
        self.close_connection = True
        self.send_response(200)
        self.end_headers()
        aborted = False
        try:
            for event in generation.events():
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            aborted = True
        self.server_state.end(aborted=aborted)

    def _send(self, data: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def run_feature_server(server: FeatureServer) -> Iterator[str]:
    """Run the server; yields its URL."""
    handler = type("Handler", (_Handler,), {"server_state": server})
    with serve_on_loopback(handler) as url:
        yield url
