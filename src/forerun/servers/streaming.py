"""Answers as they stream in: when each piece came, and of how many tokens it was.

Servers send several tokens in a piece when guesses stand, or when they are busy. How many is known where a
server shows token ids; elsewhere a piece counts as one token, and the total is what the server says it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from forerun.errors import ServerFailed

DONE: Final = "[DONE]"


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """One answer: pieces by their seconds after `sent` and their tokens; and where a server tells, for every
    step that checked guesses, how many it checked and how many of them stood.
    """

    sent: float
    times: tuple[float, ...]
    counts: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    num_tokens: int = 0
    guessed: tuple[int, ...] | None = None
    stood: tuple[int, ...] | None = None

    @property
    def speed(self) -> float | None:
        """Tokens per second from the first to the last."""
        return decoding_speed(self.times, self.counts, self.num_tokens)

    @property
    def num_later(self) -> int:
        """Tokens behind the first piece."""
        return self.num_tokens - self.counts[0]

    @property
    def num_steps(self) -> int | None:
        """Passes of the target behind the first piece, where the server tells of guesses."""
        return num_steps(self.num_later, self.stood)


def decoding_speed(times: Sequence[float], counts: Sequence[int], num_tokens: int) -> float | None:
    """Tokens per second from the first to the last, if there is time between them; what came with the first
    is not counted.
    """
    seconds = times[-1] - times[0] if times else 0.0
    return (num_tokens - counts[0]) / seconds if seconds > 0 else None


def num_steps(num_tokens: int, stood: Sequence[int] | None) -> int | None:
    """Steps for so many tokens: those with guesses, and one for every token that they did not say."""
    return None if stood is None else len(stood) + max(0, num_tokens - sum(stood) - len(stood))


@dataclass
class _Pieces:
    """What has come so far."""

    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    total: int | None = None
    ended: bool = False
    guessed: tuple[int, ...] | None = None
    stood: tuple[int, ...] | None = None

    def take(self, event: dict[str, Any], at: float) -> None:
        if "error" in event:
            raise ServerFailed(f"the server stopped half-way: {event['error']}")
        for choice in event.get("choices") or ():
            self._piece(choice, at)
        self.prompt_ids = event.get("prompt_token_ids") or self.prompt_ids
        if usage := event.get("usage"):
            self.total, self.ended = int(usage["completion_tokens"]), True
        if told := (event.get("metrics") or {}).get("speculative_decoding"):
            self.guessed = tuple(told.get("per_step_drafted") or ())
            self.stood = tuple(told.get("per_step_accepted") or ())

    def _piece(self, choice: dict[str, Any], at: float) -> None:
        said = (choice.get("delta") or {}).get("content") or choice.get("text") or ""
        ids = choice.get("token_ids") or []
        finished = bool(choice.get("finish_reason"))
        self.ended = self.ended or finished
        self.text += said
        if ids or (said and not self.token_ids):  # text that comes behind its tokens is no token
            self.times.append(at)
            self.counts.append(len(ids) or 1)
            self.token_ids += ids
        elif finished and not self.times:  # the answer was over before it began
            self.times.append(at)
            self.counts.append(0)


def read_stream(lines: Iterable[str], sent: float) -> StreamedAnswer:
    """An answer from the lines of its stream, each read as it comes."""
    pieces = _Pieces()
    for event in _events(lines):
        pieces.take(event, time.perf_counter() - sent)
    if not pieces.ended:
        raise ServerFailed("the server broke an answer off, to begin another one perhaps")
    if not pieces.times:
        raise ServerFailed("the server's answer is empty")
    return StreamedAnswer(
        sent,
        tuple(pieces.times),
        tuple(pieces.counts),
        pieces.text,
        tuple(pieces.token_ids),
        tuple(pieces.prompt_ids),
        pieces.total or sum(pieces.counts),
        pieces.guessed,
        pieces.stood,
    )


def lines_of(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines as they come; only a newline ends one, whatever else Unicode calls a separator."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", errors="replace") for line in lines)
    if rest:
        yield rest.decode("utf-8", errors="replace")


def _events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The events of a stream, which has to come to its end."""
    for line in lines:
        if line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            if data == DONE:
                return
            yield json.loads(data)
    raise ServerFailed("the server's answer was cut off")
