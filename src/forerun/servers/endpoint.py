"""An OpenAI-compatible server, asked for completions: tokens as the server made them, never text cut again.

Faults of the network (stalls, closed connections, errors of the server, answers that are no JSON) are tried
again after a pause, and counted. They are never a verdict: what cannot be asked raises `ServerFailed`.
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
from forerun.servers.dialects import Dialect, spoken_by
from forerun.servers.streaming import StreamedAnswer, lines_of, read_stream
from forerun.types import SamplingParams

Token: TypeAlias = int | str
"""A token id, or how the token reads where a server does not tell its id."""

END: Final = "<end>"
"""What comes last in an answer that ended of itself, whether or not its server shows a token for it."""

Read = TypeVar("Read")

_TRIES: Final = 6
_PAUSE: Final = 0.5
_MOST_CONCURRENT: Final = 256


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to continue: token ids where they are known, and text where there is one."""

    text: str = ""
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer: its tokens, and how many of them were guesses that stood, where the server tells."""

    tokens: tuple[Token, ...]
    prompt_ids: tuple[int, ...] = ()
    num_accepted: int | None = None
    logprobs: tuple[dict[Token, float], ...] = ()


class Endpoint:
    """A server at a URL, with or without /v1. Any number of threads may ask at once."""

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
            limits=httpx.Limits(max_connections=_MOST_CONCURRENT),
        )
        try:
            served = self._served()
        except BaseException:
            self.close()
            raise
        self.model = model or str(served.get("id", ""))
        self.dialect = dialect or spoken_by(str(served.get("owned_by", "")))

    def close(self) -> None:
        """Close the connections. Threads that wait for an answer fail at once instead of at the timeout."""
        self._closed.set()
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # closing alone does not wake a thread that reads
        self._client.close()

    def complete(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        num_tokens: int,
        *,
        num_choices: int = 1,
        num_logprobs: int | None = None,
    ) -> list[Completion]:
        """Answers of at most so many tokens."""
        logprobs = num_logprobs if num_logprobs is not None else self.dialect.logprobs
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(prompt.ids) if prompt.ids and self.dialect.takes_ids else prompt.text,
            "max_tokens": num_tokens,
            "n": num_choices,
            **self.dialect.settings(sampling),
            **self.dialect.extra,
            **({} if logprobs is None else {"logprobs": logprobs}),
        }
        if not body["prompt"]:
            raise RequestRefused(f"{self.url} takes prompts as text only, and this one has none")
        return self._ask(
            "POST", "/completions", body, lambda answer: read_answers(answer, num_choices, num_tokens)
        )

    def chat(
        self,
        text: str,
        sampling: SamplingParams,
        num_tokens: int,
        extra: Mapping[str, Any] = MappingProxyType({}),
    ) -> StreamedAnswer:
        """An answer to one message, streamed. It is asked for once: what is tried again has no time."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": num_tokens,
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
                return read_stream(lines_of(response.iter_bytes()), sent)
        except httpx.HTTPError as error:
            raise ServerFailed(f"{self.url} did not answer to the end: {type(error).__name__}") from error
        except ForerunError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ServerFailed(f"{self.url} streams something that is no answer: {error!r}") from error

    def metric(self, name: str) -> dict[str, float]:
        """The values by label of a metric whose name ends so; none where a server has no metrics."""
        try:
            page = self._client.get(self.url.removesuffix("/v1") + "/metrics", timeout=10.0)
        except (httpx.HTTPError, RuntimeError):  # not there, or closed by an interrupt
            return {}
        found = re.findall(rf"^[\w:]*{re.escape(name)}(\{{.*\}})? (\S+)$", page.text, flags=re.MULTILINE)
        return {labels: float(value) for labels, value in found} if page.is_success else {}

    def num_accepted(self) -> float | None:
        """How many guesses have stood since the server began, if its metrics say so."""
        values = self.metric("spec_decode_num_accepted_tokens_total").values()
        return sum(values) if values else None

    def _served(self) -> dict[str, Any]:
        """The first model of the server's list."""
        models: dict[str, Any] = self._ask("GET", "/models", None, lambda answer: dict(answer["data"][0]))
        return models

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, read: Callable[[dict[str, Any]], Read]
    ) -> Read:
        """One request, tried again after faults."""
        fault = ""
        for attempt in range(_TRIES):
            pause = self._pause * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)  # noqa: S311
            if self._closed.wait(pause if attempt else 0):
                break
            try:
                return read(self._try(method, path, body))
            except _Fault as error:
                fault = str(error)
            except ForerunError:
                raise
            except (LookupError, TypeError, AttributeError, ValueError):
                fault = "JSON that is no answer"
            if self._closed.is_set():
                break  # our own doing, not a fault of the server
            with self._lock:
                self.faults[fault] += 1
        if self._closed.is_set():
            raise ServerFailed(f"the connection to {self.url} was closed before the answer came")
        raise ServerFailed(f"{self.url}{path} failed {_TRIES} times in a row, last by: {fault}")

    def _try(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """One request; whatever may be better next time is a fault."""
        try:
            response = self._client.request(
                method, self.url + path, json=body, extensions={"trace": self._remember_socket}
            )
            if response.is_success:
                return dict(response.json())
        except httpx.TimeoutException as error:
            raise _Fault("no answer in time") from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ServerFailed(f"{self.url} is not an http:// or https:// URL: {error}") from error
        except httpx.RequestError as error:
            raise _Fault(f"connection: {type(error).__name__}") from error
        except ValueError as error:
            raise _Fault("no JSON") from error
        if response.status_code >= 500 or response.status_code in (408, 429):
            raise _Fault(f"status {response.status_code}")
        raise _refusal(f"{self.url}{path}", response)

    def _remember_socket(self, event: str, info: dict[str, Any]) -> None:
        """Called by httpx at every stage of a request."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            with self._lock:
                self._sockets.add(info["return_value"].get_extra_info("socket"))


def with_scheme(url: str) -> str:
    """The URL of a server given as `host:port`: http is assumed."""
    return url if "://" in url else f"http://{url}"


def fault_notes(*servers: Endpoint | None) -> Iterator[str]:
    """The faults of servers so far, in a sentence each."""
    for server in servers:
        if server is not None and server.faults:
            told = ", ".join(f"{number} x {fault}" for fault, number in server.faults.most_common())
            yield f"faults of {server.url} that were tried again: {told}"


def _refusal(url: str, response: httpx.Response) -> RequestRefused:
    return RequestRefused(f"{url} says {response.status_code}: {response.text[:300]}")


class _Fault(Exception):
    """Something that may not happen again."""


def read_answers(answer: dict[str, Any], num_choices: int, num_tokens: int) -> list[Completion]:
    """All choices of a response; what its metrics say of the whole is told with the first."""
    choices = [read_choice(choice, num_tokens) for choice in answer["choices"]]
    if len(choices) != num_choices:
        raise UnreadableAnswer(
            f"the server gave {len(choices)} answers where it was asked for {num_choices}: see --choices"
        )
    speculation = (answer.get("metrics") or {}).get("speculative_decoding") or {}
    timings = answer.get("timings") or {}
    accepted = speculation.get("num_accepted_draft_tokens", timings.get("draft_n_accepted"))
    prompt = tuple(answer.get("prompt_token_ids") or choices[0].prompt_ids)
    return [replace(choices[0], num_accepted=accepted, prompt_ids=prompt), *choices[1:]]


def read_choice(choice: dict[str, Any], num_tokens: int) -> Completion:
    """One choice, in whatever way its server shows tokens."""
    tokens = _tokens(choice)
    if not tokens and choice.get("text"):
        raise UnreadableAnswer(
            "the server does not show which tokens its answer is made of: it needs `return_token_ids` or"
            " `logprobs` (see docs/auditing.md for the flags of each server)"
        )
    ended = len(tokens) < num_tokens and choice.get("finish_reason") == "stop"
    return Completion(
        (*tokens, END) if ended else tokens,
        prompt_ids=tuple(choice.get("prompt_token_ids") or ()),
        logprobs=_logprobs(choice.get("logprobs") or {}),
    )


def _tokens(choice: dict[str, Any]) -> tuple[Token, ...]:
    """The tokens of a choice: ids, or bytes, or how they read."""
    if choice.get("token_ids"):
        return tuple(choice["token_ids"])
    logprobs = choice.get("logprobs") or {}
    if content := logprobs.get("content"):
        return tuple(_named(token) for token in content)
    return tuple(_spelled(token) for token in logprobs.get("tokens") or ())


def _logprobs(logprobs: dict[str, Any]) -> tuple[dict[Token, float], ...]:
    """The likeliest tokens of each position."""
    if content := logprobs.get("content"):
        return tuple(
            {_named(each): each["logprob"] for each in one.get("top_logprobs", ())} for one in content
        )
    return tuple(
        {_spelled(token): value for token, value in (one or {}).items()}
        for one in logprobs.get("top_logprobs") or ()
    )


def _named(token: dict[str, Any]) -> Token:
    """A token of the newer format: by id, or by its bytes."""
    if isinstance(token.get("id"), int):
        return int(token["id"])
    if token.get("bytes"):
        return bytes(token["bytes"]).decode("utf-8", errors="backslashreplace")
    return _spelled(token["token"])


def _spelled(token: str) -> Token:
    """A token of the older format: `token_id:7`, or how it reads."""
    head, _, number = token.partition(":")
    return int(number) if head == "token_id" and number.isdigit() else token


def looked_up(tokens: Sequence[Token]) -> frozenset[Token]:
    """What followed earlier occurrences of the last token: what a look-up would guess, whatever its rule."""
    if not tokens:
        return frozenset()
    last = tokens[-1]
    return frozenset(after for token, after in pairwise(tokens) if token == last)
