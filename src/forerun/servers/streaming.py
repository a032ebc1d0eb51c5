"""Streamed completions: the arrival time and the number of tokens of each chunk.

A chunk holds several tokens if draft tokens were accepted or if the server is busy. The number is known if
the server returns token ids. Otherwise a chunk counts as one token, and the total comes from the server's
usage.
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
    """One streamed completion: for each chunk the seconds after `sent` and the number of tokens.

    If the server reports them, also the draft tokens and the accepted ones of every step that verified a
    draft.
    """

    sent: float
    times: tuple[float, ...]
    counts: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    num_tokens: int = 0
    drafted_per_step: tuple[int, ...] | None = None
    accepted_per_step: tuple[int, ...] | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """Decode throughput, from the first to the last chunk."""
        return decode_tokens_per_second(self.times, self.counts, self.num_tokens)

    @property
    def num_later_tokens(self) -> int:
        """Tokens after the first chunk."""
        return self.num_tokens - self.counts[0]

    @property
    def num_steps(self) -> int | None:
        """Target steps after the first chunk, if the server reports speculation."""
        return num_steps(self.num_later_tokens, self.accepted_per_step)


def decode_tokens_per_second(times: Sequence[float], counts: Sequence[int], num_tokens: int) -> float | None:
    """Tokens per second after the first chunk, whose tokens do not count; None if no time passed."""
    seconds = times[-1] - times[0] if times else 0.0
    return (num_tokens - counts[0]) / seconds if seconds > 0 else None


def num_steps(num_tokens: int, accepted_per_step: Sequence[int] | None) -> int | None:
    """Steps that emitted `num_tokens`: those with a draft, and one for every other token."""
    return (
        None
        if accepted_per_step is None
        else len(accepted_per_step) + max(0, num_tokens - sum(accepted_per_step) - len(accepted_per_step))
    )


@dataclass
class _PartialCompletion:
    """The chunks received so far."""

    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    total: int | None = None
    ended: bool = False
    drafted_per_step: tuple[int, ...] | None = None
    accepted_per_step: tuple[int, ...] | None = None

    def add(self, event: dict[str, Any], at: float) -> None:
        if "error" in event:
            raise ServerFailed(f"the server stopped during a response: {event['error']}")
        for choice in event.get("choices") or ():
            self._add_chunk(choice, at)
        self.prompt_ids = event.get("prompt_token_ids") or self.prompt_ids
        if usage := event.get("usage"):
            self.total, self.ended = int(usage["completion_tokens"]), True
        if speculation := (event.get("metrics") or {}).get("speculative_decoding"):
            self.drafted_per_step = tuple(speculation.get("per_step_drafted") or ())
            self.accepted_per_step = tuple(speculation.get("per_step_accepted") or ())

    def _add_chunk(self, choice: dict[str, Any], at: float) -> None:
        text = (choice.get("delta") or {}).get("content") or choice.get("text") or ""
        ids = choice.get("token_ids") or []
        finished = bool(choice.get("finish_reason"))
        self.ended = self.ended or finished
        self.text += text
        if ids or (text and not self.token_ids):  # text that arrives after its token ids is no new token
            self.times.append(at)
            self.counts.append(len(ids) or 1)
            self.token_ids += ids
        elif finished and not self.times:  # an empty completion
            self.times.append(at)
            self.counts.append(0)


def read_stream(lines: Iterable[str], sent: float) -> StreamedAnswer:
    """Read a completion from the lines of its stream, timing each as it arrives."""
    partial = _PartialCompletion()
    for event in read_events(lines):
        partial.add(event, time.perf_counter() - sent)
    if not partial.ended:
        raise ServerFailed(
            "the stream ended without a finish reason or usage: the server dropped the request"
        )
    if not partial.times:
        raise ServerFailed("the server's response is empty")
    return StreamedAnswer(
        sent,
        tuple(partial.times),
        tuple(partial.counts),
        partial.text,
        tuple(partial.token_ids),
        tuple(partial.prompt_ids),
        partial.total or sum(partial.counts),
        partial.drafted_per_step,
        partial.accepted_per_step,
    )


def split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines as they arrive, split at newlines only and not at other Unicode separators."""
    remainder = b""
    for chunk in chunks:
        *lines, remainder = (remainder + chunk).split(b"\n")
        yield from (line.decode("utf-8", errors="replace") for line in lines)
    if remainder:
        yield remainder.decode("utf-8", errors="replace")


def read_events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The events of a stream, which must end with `[DONE]`."""
    for line in lines:
        if line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            if data == DONE:
                return
            yield json.loads(data)
    raise ServerFailed("the server closed the stream before its end")
