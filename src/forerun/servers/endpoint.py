"""A client of an OpenAI-compatible server. Tokens come from the server itself, never from retokenized text.

Network faults (timeouts, closed connections, server errors, malformed JSON) are counted and retried after a
pause. They never count as a difference: a request that keeps failing raises `ServerFailed`.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

import httpx

from forerun.errors import ForerunError, RequestRefused, ServerFailed, UnreadableAnswer
from forerun.servers.dialects import Dialect, detect_dialect
from forerun.servers.streaming import StreamedAnswer, read_stream, split_lines
from forerun.types import SamplingParams

Token: TypeAlias = int | str
"""A token id, or the token's text if the server does not return ids."""

END: Final = "<end>"
"""Appended to a completion that ended before its limit, whether or not the server returned a token for it."""

Parsed = TypeVar("Parsed")

_MAX_ATTEMPTS: Final = 6
_PAUSE: Final = 0.5
_MAX_CONNECTIONS: Final = 256


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as text, as token ids, or both."""

    text: str = ""
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion; `num_accepted` draft tokens if the server reports them."""

    tokens: tuple[Token, ...]
    prompt_ids: tuple[int, ...] = ()
    num_accepted: int | None = None
    logprobs: tuple[dict[Token, float], ...] = ()


class Endpoint:
    """A server at a URL, with or without /v1. Thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str = "none",
        dialect: Dialect | None = None,
        timeout: float = 120.0,
        pause: float = _PAUSE,
    ) -> None:
        base = with_scheme(url).rstrip("/")
        self.url = base if base.endswith("/v1") else f"{base}/v1"
        self.faults: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._pause = pause
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            limits=httpx.Limits(max_connections=_MAX_CONNECTIONS),
        )
        try:
            served = self._first_model()
        except BaseException:
            self.close()
            raise
        self.model = model or str(served.get("id", ""))
        self.dialect = dialect or detect_dialect(str(served.get("owned_by", "")))

    def close(self) -> None:
        """Close the connections. Threads that wait for a response fail at once instead of at the timeout."""
        self._closed.set()
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # close() alone does not wake a reading thread
        self._client.close()

    def complete(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        max_tokens: int,
        *,
        num_choices: int = 1,
        num_logprobs: int | None = None,
    ) -> list[Completion]:
        """Request `num_choices` completions of at most `max_tokens` tokens."""
        logprobs = num_logprobs if num_logprobs is not None else self.dialect.logprobs
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(prompt.ids) if prompt.ids and self.dialect.accepts_token_ids else prompt.text,
            "max_tokens": max_tokens,
            "n": num_choices,
            **self.dialect.settings(sampling),
            **self.dialect.extra,
            **({} if logprobs is None else {"logprobs": logprobs}),
        }
        if not body["prompt"]:
            raise RequestRefused(
                f"{self.url} accepts prompts as text only: give the prompt as text, not as token ids"
            )
        return self._send(
            "POST", "/completions", body, lambda response: parse_response(response, num_choices, max_tokens)
        )

    def chat(
        self,
        text: str,
        sampling: SamplingParams,
        max_tokens: int,
        extra: Mapping[str, Any] = MappingProxyType({}),
    ) -> StreamedAnswer:
        """Stream a completion for one message. Never retried, so that its timing is that of one request."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.dialect.settings(sampling),
            **self.dialect.extra,
            **extra,
        }
        sent = time.perf_counter()
        try:
            with self._client.stream("POST", f"{self.url}/chat/completions", json=body) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(self.url, response)
                return read_stream(split_lines(response.iter_bytes()), sent)
        except httpx.HTTPError as error:
            raise ServerFailed(f"{self.url} failed during a response: {type(error).__name__}") from error
        except ForerunError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ServerFailed(f"{self.url} returned a malformed stream: {error!r}") from error

    def read_metric(self, name: str) -> dict[str, float]:
        """Values by labels of the metric whose name ends in `name`; empty if there is no such metric."""
        try:
            page = self._client.get(self.url.removesuffix("/v1") + "/metrics", timeout=10.0)
        except (httpx.HTTPError, RuntimeError):  # unavailable, or closed by an interrupt
            return {}
        found = re.findall(rf"^[\w:]*{re.escape(name)}(\{{.*\}})? (\S+)$", page.text, flags=re.MULTILINE)
        return {labels: float(value) for labels, value in found} if page.is_success else {}

    def read_num_accepted(self) -> float | None:
        """Draft tokens accepted since the server started, if it has that metric."""
        values = self.read_metric("spec_decode_num_accepted_tokens_total").values()
        return sum(values) if values else None

    def _first_model(self) -> dict[str, Any]:
        """The first model that the server lists."""
        models: dict[str, Any] = self._send(
            "GET", "/models", None, lambda response: dict(response["data"][0])
        )
        return models

    def _send(
        self, method: str, path: str, body: dict[str, Any] | None, parse: Callable[[dict[str, Any]], Parsed]
    ) -> Parsed:
        """Send a request, and retry it after faults."""
        fault = ""
        for attempt in range(_MAX_ATTEMPTS):
            pause = self._pause * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)  # noqa: S311
            if self._closed.wait(pause if attempt else 0):
                break
            try:
                return parse(self._try(method, path, body))
            except _Fault as error:
                fault = str(error)
            except ForerunError:
                raise
            except (LookupError, TypeError, AttributeError, ValueError):
                fault = "malformed response"
            if self._closed.is_set():
                break  # closed by this process: not a fault of the server
            with self._lock:
                self.faults[fault] += 1
        if self._closed.is_set():
            raise ServerFailed(f"the connection to {self.url} was closed before the response")
        raise ServerFailed(f"{self.url}{path} failed {_MAX_ATTEMPTS} times in a row; the last fault: {fault}")

    def _try(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """Send a request once; raises `_Fault` if a retry may succeed."""
        try:
            response = self._client.request(
                method, self.url + path, json=body, extensions={"trace": self._remember_socket}
            )
            if response.is_success:
                return dict(response.json())
        except httpx.TimeoutException as error:
            raise _Fault("timeout") from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ServerFailed(f"{self.url} is not an http:// or https:// URL: {error}") from error
        except httpx.RequestError as error:
            raise _Fault(f"connection: {type(error).__name__}") from error
        except ValueError as error:
            raise _Fault("invalid JSON") from error
        if response.status_code >= 500 or response.status_code in (408, 429):
            raise _Fault(f"status {response.status_code}")
        raise _refusal(f"{self.url}{path}", response)

    def _remember_socket(self, event: str, info: dict[str, Any]) -> None:
        """Record a new socket; httpx calls this at every stage of a request."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            with self._lock:
                self._sockets.add(info["return_value"].get_extra_info("socket"))


def with_scheme(url: str) -> str:
    """The URL of a server, which may be given as `host:port`; http is the default scheme."""
    return url if "://" in url else f"http://{url}"


def fault_notes(*servers: Endpoint | None) -> Iterator[str]:
    """One note per server with retried faults."""
    for server in servers:
        if server is not None and server.faults:
            counts = ", ".join(f"{number} x {fault}" for fault, number in server.faults.most_common())
            yield f"retried faults of {server.url}: {counts}"


def _refusal(url: str, response: httpx.Response) -> RequestRefused:
    return RequestRefused(f"{url} responded with status {response.status_code}: {response.text[:300]}")


class _Fault(Exception):
    """A fault after which a request is retried."""


def parse_response(response: dict[str, Any], num_choices: int, max_tokens: int) -> list[Completion]:
    """All choices of a response; metrics of the whole request are attached to the first."""
    choices = [parse_choice(choice, max_tokens) for choice in response["choices"]]
    if len(choices) != num_choices:
        raise UnreadableAnswer(
            f"the server returned {len(choices)} choices instead of {num_choices}: lower --choices"
        )
    speculation = (response.get("metrics") or {}).get("speculative_decoding") or {}
    timings = response.get("timings") or {}
    accepted = speculation.get("num_accepted_draft_tokens", timings.get("draft_n_accepted"))
    prompt = tuple(response.get("prompt_token_ids") or choices[0].prompt_ids)
    return [replace(choices[0], num_accepted=accepted, prompt_ids=prompt), *choices[1:]]


def parse_choice(choice: dict[str, Any], num_tokens: int) -> Completion:
    """One choice, in any of the formats in which servers return tokens."""
    tokens = _tokens(choice)
    if not tokens and choice.get("text"):
        raise UnreadableAnswer(
            "the server does not return the tokens of its completion: it needs `return_token_ids` or"
            " `logprobs` (see docs/auditing.md for the flags of each server)"
        )
    ended = len(tokens) < num_tokens and choice.get("finish_reason") == "stop"
    return Completion(
        (*tokens, END) if ended else tokens,
        prompt_ids=tuple(choice.get("prompt_token_ids") or ()),
        logprobs=_logprobs(choice.get("logprobs") or {}),
    )


def _tokens(choice: dict[str, Any]) -> tuple[Token, ...]:
    """The tokens of a choice, as ids, bytes or text."""
    if choice.get("token_ids"):
        return tuple(choice["token_ids"])
    logprobs = choice.get("logprobs") or {}
    if content := logprobs.get("content"):
        return tuple(_chat_token(token) for token in content)
    return tuple(_completion_token(token) for token in logprobs.get("tokens") or ())


def _logprobs(logprobs: dict[str, Any]) -> tuple[dict[Token, float], ...]:
    """The top log-probabilities of each position."""
    if content := logprobs.get("content"):
        return tuple(
            {_chat_token(each): each["logprob"] for each in one.get("top_logprobs", ())} for one in content
        )
    return tuple(
        {_completion_token(token): value for token, value in (one or {}).items()}
        for one in logprobs.get("top_logprobs") or ()
    )


def _chat_token(token: dict[str, Any]) -> Token:
    """A token in the format of chat completions: by id, or by its bytes."""
    if isinstance(token.get("id"), int):
        return int(token["id"])
    if token.get("bytes"):
        return bytes(token["bytes"]).decode("utf-8", errors="backslashreplace")
    return _completion_token(token["token"])


def _completion_token(token: str) -> Token:
    """A token in the format of completions: `token_id:7`, or text."""
    head, _, number = token.partition(":")
    return int(number) if head == "token_id" and number.isdigit() else token


def lookup_candidates(tokens: Sequence[Token]) -> frozenset[Token]:
    """Tokens after earlier occurrences of the last token: a superset of any lookup drafter's next token."""
    if not tokens:
        return frozenset()
    last = tokens[-1]
    return frozenset(after for token, after in pairwise(tokens) if token == last)
