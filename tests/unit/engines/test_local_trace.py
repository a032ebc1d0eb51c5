"""Traces: written, read back, and shown on a page."""

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
from forerun.engines.local.trace_reader import MAX_REJECTED, best_rejected, read_calls, read_trace
from forerun.engines.local.trace_writer import TraceWriter, accepted_nodes
from forerun.errors import UnreadableTrace
from forerun.types import Draft, Verdict

TREE = Draft(
    tokens=np.array([1, 2, 3, 4]),
    parents=np.array([-1, 0, 1, 0]),
    sampled=np.zeros(4, dtype=bool),
    source=("suffix",) * 4,
    survival=np.array([0.9, 0.5, 0.4, 0.1], dtype=np.float32),
)


class Letters:
    """A tokenizer of letters."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join("<abcdefgh"[token] for token in tokens)


def test_the_best_rejected_path_continues_the_accepted_one() -> None:
    parents = TREE.parents.tolist()
    assert best_rejected(parents, ()) == [0, 1, 2]
    assert best_rejected(parents, (0,)) == [1, 2]
    assert best_rejected(parents, (0, 3)) == []
    assert best_rejected(list(range(-1, 20)), ()) == list(range(MAX_REJECTED))


def test_tokens_cut_off_by_a_stop_do_not_count_as_accepted() -> None:
    update = Update("0", (1,), draft=TREE, verdict=Verdict((0, 1), 7))
    assert accepted_nodes(update) == (0,)


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
    file = tmp_path / "trace.jsonl"
    file.write_text(out.getvalue(), encoding="utf-8")
    return file


def test_a_trace_has_one_line_per_step(trace: Path) -> None:
    prompt, first, second, result, cancelled = map(json.loads, trace.read_text().splitlines())
    assert (prompt["prompt"], prompt["prompt_tokens"]) == ("ab", 2)
    assert first["accepted"] == [0, 1]
    assert [token["text"] for token in first["tokens"]] == ["a", "b", "e"]
    assert first["draft_tokens"][1] == {
        "token": 2,
        "text": "b",
        "parent": 0,
        "drafter": "suffix",
        "sampled": False,
        "survival": 0.8125,
        "drafter_survival": 0.5,
    }
    assert second["draft_tokens"][0]["survival"] is None
    assert second["draft_tokens"][0]["drafter_survival"] is None
    assert result["result"]["finish_reason"] == "stop"
    assert cancelled["result"]["finish_reason"] == "cancelled"


def test_a_trace_with_former_keys_reads_the_same(trace: Path) -> None:
    former = {"tokens": "said", "draft_tokens": "guesses", "drafter": "by", "sampled": "drawn"}
    lines = trace.read_text(encoding="utf-8")
    for key, before in former.items():
        assert f'"{key}": ' in lines
        lines = lines.replace(f'"{key}": ', f'"{before}": ')
    old = trace.with_name("old.jsonl")
    old.write_text(lines, encoding="utf-8")
    assert [each.steps for each in read_trace(old)] == [each.steps for each in read_trace(trace)]


def test_the_page_shows_every_step_and_is_self_contained(trace: Path) -> None:
    traces = read_trace(trace)
    assert [(each.id, len(each.steps)) for each in traces] == [("0", 2), ("1", 0)]
    page = trace.with_suffix(".html")
    write_page(traces, page)
    html = page.read_text(encoding="utf-8")
    spans = [("accepted", "a"), ("accepted", "b"), ("target", "e")]
    assert "".join(f'<span class="{kind}">{text}</span>' for kind, text in spans) in html
    assert '<span class="rejected">c</span>' in html
    assert '<span class="target">&lt;</span>' in html
    assert html.count("<details>") == 2
    assert "http" not in html
    assert "<script" not in html


def test_the_page_shows_the_survival_that_the_controller_used(trace: Path) -> None:
    page = trace.with_suffix(".html")
    write_page(read_trace(trace), page)
    _, *sections = page.read_text(encoding="utf-8").split("<section>")
    shown = re.findall(r'class="drafter"[^>]*>([^<]*)<', "".join(sections))
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
        ("nonsense\n", "line 1 of"),
        ('{"id": "0", "prompt": "x"}\n{"id": "0", "seconds": 1}\n', "line 2 of"),
    ],
)
def test_a_file_that_is_not_a_trace_raises(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(content)
    with pytest.raises(UnreadableTrace, match=message):
        read_trace(file)
    with pytest.raises(UnreadableTrace, match="cannot read"):
        read_trace(tmp_path / "nowhere.jsonl")


class Recorder:
    calls: list[tuple[float, float, int]] | None = None


def test_forward_passes_of_both_models_are_on_a_time_axis(tmp_path: Path) -> None:
    out = io.StringIO()
    tracer = TraceWriter(out, Letters())
    target, draft = Recorder(), Recorder()
    update = Update("0", (1,), "a", Draft.chain([3]), Verdict((), 1))
    with tracer.recording({"target": target, "model": draft}):  # type: ignore[dict-item]
        for step in range(3):
            assert target.calls == draft.calls == []
            began = tracer._began + step
            target.calls += [(began, began + 0.5, 4)]
            draft.calls += [(began + 0.5, began + 0.6, 1), (began + 0.6, began + 0.7, 1)]
            tracer.update(update)
    assert target.calls is None
    file = tmp_path / "trace.jsonl"
    file.write_text(out.getvalue())
    assert len(read_trace(file)[0].steps) == 3
    calls = read_calls(file)
    assert [round(each.began, 3) for each in calls["target"]] == [0, 1, 2]
    assert [each.num_rows for each in calls["model"]] == [1] * 6
    page = tmp_path / "page.html"
    write_page(read_trace(file), page, calls)
    bars = re.findall(
        r'<rect class="(target|draft)" x="([0-9.]+)" y="(\d+)" width="([0-9.]+)"', page.read_text()
    )
    assert [kind for kind, *_ in bars] == ["target"] * 3 + ["draft"] * 4, (
        "passes after the last are not drawn"
    )
    (first, second), width = [float(x) for _, x, *_ in bars[:2]], float(bars[0][3])
    assert width / (second - first) == pytest.approx(0.5, abs=0.05)
    write_page(read_trace(file), page, {"target": calls["target"]})
    assert "Forward passes" not in page.read_text(), "without a draft model there is nothing to compare"
