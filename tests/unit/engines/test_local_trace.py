"""Rounds written, read back and drawn."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from forerun.engines.local.request import Result, Update
from forerun.engines.local.trace_page import write_page
from forerun.engines.local.trace_reader import best_dropped, read_trace
from forerun.engines.local.trace_writer import TraceWriter, own_words
from forerun.errors import UnreadableTrace
from forerun.types import Draft, Verdict

TREE = Draft(
    tokens=np.array([1, 2, 3, 4]),
    parents=np.array([-1, 0, 1, 0]),
    sampled=np.zeros(4, dtype=bool),
    source=("suffix",) * 4,
    evidence=np.array([[0.9], [0.5], [0.4], [0.1]], dtype=np.float32),
)


class Letters:
    """A tokenizer of letters."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join("<abcdefgh"[token] for token in tokens)


def test_what_was_dropped_is_the_best_line_behind_what_was_kept() -> None:
    parents = TREE.parents.tolist()
    assert best_dropped(parents, ()) == [0, 1, 2]
    assert best_dropped(parents, (0,)) == [1, 2]
    assert best_dropped(parents, (0, 3)) == []
    assert best_dropped(parents, (), most=2) == [0, 1]


def test_a_stop_cuts_what_counts_as_said() -> None:
    update = Update("0", (1,), draft=TREE, verdict=Verdict((0, 1), 7))
    assert own_words(update) == (0,)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    out = io.StringIO()
    tracer = TraceWriter(out, Letters())
    tracer.prompt("0", [1, 2])
    used = (0.95, 0.8125, 0.7, 0.05)
    tracer.update(Update("0", (1, 2, 5), "abe", TREE, Verdict((0, 1), 5), survival=used))
    tracer.update(
        Update("0", (0,), "<", Draft.chain([3]), Verdict((), 0), Result("0", "abe<", (1, 2, 5, 0), "stop"))
    )
    tracer.update(Update("1", result=Result("1", "", (), "cancelled")))
    file = tmp_path / "rounds.jsonl"
    file.write_text(out.getvalue(), encoding="utf-8")
    return file


def test_a_trace_has_a_line_a_round(trace: Path) -> None:
    prompt, first, second, result, cancelled = map(json.loads, trace.read_text().splitlines())
    assert (prompt["prompt"], prompt["prompt_tokens"]) == ("ab", 2)
    assert first["accepted"] == [0, 1]
    assert [token["text"] for token in first["said"]] == ["a", "b", "e"]
    assert first["guesses"][1] == {
        "token": 2,
        "text": "b",
        "parent": 0,
        "by": "suffix",
        "drawn": False,
        "survival": 0.8125,
        "drafter_survival": 0.5,
    }
    assert second["guesses"][0]["survival"] is None
    assert second["guesses"][0]["drafter_survival"] is None
    assert result["result"]["finish_reason"] == "stop"
    assert cancelled["result"]["finish_reason"] == "cancelled"


def test_the_page_shows_every_round_and_needs_nothing_else(trace: Path) -> None:
    stories = read_trace(trace)
    assert [(story.id, len(story.rounds)) for story in stories] == [("0", 2), ("1", 0)]
    page = trace.with_suffix(".html")
    write_page(stories, page)
    html = page.read_text(encoding="utf-8")
    assert '<span class="kept">a</span><span class="kept">b</span><span class="own">e</span>' in html
    assert '<span class="dropped">c</span>' in html
    assert '<span class="own">&lt;</span>' in html
    assert html.count("<details>") == 2
    assert "http" not in html
    assert "<script" not in html


def test_the_page_shows_the_survival_that_the_controller_used(trace: Path) -> None:
    page = trace.with_suffix(".html")
    write_page(read_trace(trace), page)
    _, *sections = page.read_text(encoding="utf-8").split("<section>")
    shown = re.findall(r'class="by"[^>]*>([^<]*)<', "".join(sections))
    assert shown == ["suffix 0.95", "suffix 0.81", "suffix 0.05", ""]


def test_the_page_follows_the_readers_colour_scheme(trace: Path) -> None:
    page = trace.with_suffix(".html")
    write_page(read_trace(trace), page)
    html = page.read_text(encoding="utf-8")
    assert "color-scheme: light dark" in html
    style, body = html.split("</style>")
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    names = set(re.findall(r"(--[\w-]+):", light))
    assert names
    assert names == set(re.findall(r"(--[\w-]+):", dark)), "every colour has a dark counterpart"
    rules = style[style.index("body {") :]
    assert not re.findall(r"#[0-9a-f]{3,8}\b", rules + body), "colours are named once, in :root"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("nonsense\n", "line 1 of .* is not of a trace"),
        ('{"id": "0", "prompt": "x"}\n{"id": "0", "seconds": 1}\n', "line 2 of"),
    ],
)
def test_what_is_no_trace_is_told(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(content)
    with pytest.raises(UnreadableTrace, match=message):
        read_trace(file)
    with pytest.raises(UnreadableTrace, match="cannot read"):
        read_trace(tmp_path / "nowhere.jsonl")
