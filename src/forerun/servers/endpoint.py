"""A client of an OpenAI-compatible server.

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
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import httpx

from forerun.errors import ForerunError, RequestRefused, ServerFailed
from forerun.servers.completions import Completion, Prompt, parse_response
from forerun.servers.dialects import Dialect, detect_dialect
from forerun.servers.streaming import StreamedAnswer, read_events, read_stream, split_lines
from forerun.types import SamplingParams

Parsed = TypeVar("Parsed")

_MAX_ATTEMPTS: Final = 6
_PAUSE: Final = 0.5
_MAX_CONNECTIONS: Final = 256


class Endpoint:
    """A server at a URL, with or without /v1. Thread-safe.

    `max_length` is the maximum number of tokens of prompt and output, if the server states it.
    """

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
        self.max_length: int | None = served.get("max_model_len")
        self.dialect = dialect or detect_dialect(str(served.get("owned_by", "")))

    def close(self) -> None:
        """Close the connections. Threads that wait for a response fail at once instead of at the timeout."""
        self._closed.set()
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            _shut_down(each)
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

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send any request of the API, and retry it after faults; returns the response."""
        return self._send("POST", path, {"model": self.model, **body}, dict)

    @contextlib.contextmanager
    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a streamed response. Leaving the block early aborts the request."""
        request = {"model": self.model, **body, "stream": True}
        try:
            with self._client.stream("POST", self.url + path, json=request) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(f"{self.url}{path}", response)
                yield read_events(split_lines(response.iter_bytes()))
        except httpx.HTTPError as error:
            raise ServerFailed(f"{self.url} failed during a response: {type(error).__name__}") from error

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

    def responds(self) -> bool:
        """Whether the server still lists its models."""
        try:
            self._first_model()
        except ServerFailed:
            return False
        return True

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
            opened = info["return_value"].get_extra_info("socket")
            with self._lock:
                self._sockets.add(opened)
            if self._closed.is_set():  # `close` has not seen this socket
                _shut_down(opened)


def _shut_down(connection: socket.socket) -> None:
    """Wake the thread that reads from a connection, which closing the connection alone does not."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def with_scheme(url: str) -> str:
    """The URL of a server, which may be given as `host:port`; http is the default scheme."""
    return url if "://" in url else f"http://{url}"


def fault_notes(*servers: Endpoint | None) -> Iterator[str]:
    """One note per server with retried faults."""
    for server in servers:
        if server is not None and server.faults:
            counts = ", ".join(f"{number} x {fault}" for fault, number in server.faults.most_common())
            yield f"retried faults of {server.url}: {counts}"


def accepted_note(before: float | None, after: float | None) -> str:
    """How many draft tokens a server accepted between two readings of `Endpoint.read_num_accepted`."""
    if before is None:
        return "the server has no metric of accepted draft tokens"
    if after is None:
        return "accepted draft tokens are unknown: the server's metrics could not be read at the end"
    if after == before:
        return "no draft token was accepted, by the server's metrics: speculation was not tested"
    return f"{after - before:,.0f} draft tokens were accepted, by the server's metrics"


def _refusal(url: str, response: httpx.Response) -> RequestRefused:
    return RequestRefused(f"{url} responded with status {response.status_code}: {response.text[:300]}")


class _Fault(Exception):
    """A fault after which a request is retried."""
