"""Answers from the lines of their streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forerun.errors import ServerFailed
from forerun.servers.streaming import StreamedAnswer, read_stream


def stream(*events: dict[str, Any], done: bool = True) -> StreamedAnswer:
    lines = [f"data: {json.dumps(event)}" for event in events]
    return read_stream([*lines, *(["data: [DONE]"] if done else [])], sent=0.0)


def piece(text: str, *ids: int, **more: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "token_ids": list(ids), **more}]}


def test_pieces_are_counted_by_their_tokens() -> None:
    found = stream(piece("a", 1), piece("bc", 2, 3), piece("", finish_reason="stop"))
    assert (found.counts, found.token_ids, found.num_tokens, found.text) == ((1, 2), (1, 2, 3), 3, "abc")
    assert found.speed is not None


def test_an_answer_that_is_over_before_it_begins_is_one() -> None:
    found = stream(piece("", finish_reason="stop"))
    assert (found.counts, found.token_ids, found.num_tokens, found.speed) == ((0,), (), 0, None)


@pytest.mark.parametrize(
    ("events", "done", "why"),
    [
        ((piece("a", 1), piece("b", 2, finish_reason="stop")), False, "cut off"),
        ((piece("a", 1),), True, "broke an answer off"),
        ((piece("a", 1), {"error": "out of memory"}), True, "stopped half-way: out of memory"),
        (({"choices": [], "usage": {"completion_tokens": 0}},), True, "is empty"),
    ],
)
def test_what_is_not_whole_is_an_error(events: tuple[dict[str, Any], ...], done: bool, why: str) -> None:
    with pytest.raises(ServerFailed, match=why):
        stream(*events, done=done)
