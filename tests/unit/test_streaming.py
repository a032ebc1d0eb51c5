"""Completions read from the lines of their streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forerun.errors import ServerFailed
from forerun.servers.streaming import StreamedAnswer, read_stream


def stream(*events: dict[str, Any], done: bool = True) -> StreamedAnswer:
    lines = [f"data: {json.dumps(event)}" for event in events]
    return read_stream([*lines, *(["data: [DONE]"] if done else [])], sent=0.0)


def chunk(text: str, *ids: int, **more: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "token_ids": list(ids), **more}]}


def test_chunks_are_counted_by_their_tokens() -> None:
    found = stream(chunk("a", 1), chunk("bc", 2, 3), chunk("", finish_reason="stop"))
    assert (found.counts, found.token_ids, found.num_tokens, found.text) == ((1, 2), (1, 2, 3), 3, "abc")
    assert found.tokens_per_second is not None


def test_an_empty_completion_is_read() -> None:
    found = stream(chunk("", finish_reason="stop"))
    assert (found.counts, found.token_ids, found.num_tokens, found.tokens_per_second) == ((0,), (), 0, None)


@pytest.mark.parametrize(
    ("events", "done", "reason"),
    [
        ((chunk("a", 1), chunk("b", 2, finish_reason="stop")), False, "before its end"),
        ((chunk("a", 1),), True, "without a finish reason"),
        ((chunk("a", 1), {"error": "out of memory"}), True, "out of memory"),
        (({"choices": [], "usage": {"completion_tokens": 0}},), True, "is empty"),
    ],
)
def test_an_incomplete_stream_is_an_error(
    events: tuple[dict[str, Any], ...], done: bool, reason: str
) -> None:
    with pytest.raises(ServerFailed, match=reason):
        stream(*events, done=done)
