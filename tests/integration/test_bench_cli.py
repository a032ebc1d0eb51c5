"""`forerun bench` against servers that stream: speeds, words, failures, interruptions, pages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from zoo.streaming_servers import Talker, talking

QUESTIONS = 6


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    rows = [
        {"question_id": at, "category": "writing" if at % 2 else "qa", "turns": [f"Question {'?' * at}"]}
        for at in range(QUESTIONS)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def forerun(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forerun", "bench", *words]
    wide = {**os.environ, "COLUMNS": "160"}
    return subprocess.run(command, capture_output=True, text=True, check=check, env=wide)


def race(questions: Path, servers: ExitStack, record: Path, *flags: str, **talkers: Talker) -> Any:
    """The results of a race of these, the first of which is plain."""
    first = next(iter(talkers))
    words: list[str | Path] = ["run", questions, "--only", "-o", record, "--json", *flags]
    for name, talker in talkers.items():
        words += ["--against", f"{name}={servers.enter_context(talking(talker))}"]
        words += ["--baseline", f"{name}={first}"]
    return json.loads(forerun(*words).stdout)


def test_speeds_are_ratios_and_words_are_compared(
    questions: Path, servers: ExitStack, tmp_path: Path
) -> None:
    plain, quick = Talker(pause=0.01), Talker(pause=0.01, piece=4)
    wrong = Talker(pause=0.01, said=lambda question, at: at)
    record = tmp_path / "bench.jsonl"
    talkers = {"plain": plain, "quick": quick, "wrong": wrong}
    flags = ("--concurrency", "1,4", "--temperature", "0,1")
    results = race(questions, servers, record, *flags, **talkers)
    assert len(results) == 3 * 2 * 2
    by_name = {each["who"]: each for each in results if (each["temperature"], each["width"]) == (0, 1)}
    ours = by_name["quick"]["by_category"]
    assert set(ours) == {"all of them", "mt-bench", "qa"}
    assert 2.0 < ours["all of them"]["over_plain"]["value"] < 5.0
    assert ours["all of them"]["tokens_per_step"] == pytest.approx(20 / 5)
    assert by_name["quick"]["words"]["same"] == QUESTIONS
    assert by_name["wrong"]["words"]["undecided"] == QUESTIONS
    told = forerun("report", record).stdout
    assert "6 undecided" in told
    seeds = [body["seed"] for body in plain.asked if body["temperature"] == 1]
    assert len(set(seeds)) == QUESTIONS
    assert sorted(seeds) == sorted(body["seed"] for body in quick.asked if body["temperature"] == 1)


def test_everybody_is_asked_in_turn(questions: Path, servers: ExitStack, tmp_path: Path) -> None:
    record = tmp_path / "bench.jsonl"
    race(questions, servers, record, plain=Talker(), quick=Talker(piece=2))
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    order = [row["who"] for row in rows if "who" in row]
    turns = [tuple(order[at : at + 2]) for at in range(0, len(order), 2)]
    assert len(turns) == QUESTIONS
    assert set(turns) == {("plain", "quick"), ("quick", "plain")}, "nobody always comes after the same one"


def test_who_errs_half_way_is_marked_and_asked_again(
    questions: Path, servers: ExitStack, tmp_path: Path
) -> None:
    record, plain, failing = tmp_path / "bench.jsonl", Talker(), Talker(piece=2, breaks_at=6)
    flags: list[str | Path] = ["run", questions, "--only", "-o", record, "--baseline", "failing=plain"]
    flags += ["--against", f"plain={servers.enter_context(talking(plain))}"]
    flags += ["--against", f"failing={servers.enter_context(talking(failing))}"]
    told = forerun(*flags, check=False)
    assert told.returncode == 1
    assert "failing" in told.stderr.splitlines()[-1]
    assert "plain" not in told.stderr.splitlines()[-1], "the other system did not fail"
    assert "✗" in told.stdout
    assert "3 answers are missing" in told.stdout
    failing.breaks_at, answered = 10**9, len(plain.asked)
    mended = forerun(*flags)
    assert len(plain.asked) > answered, "who is compared is asked in the same hour"
    assert "✗" not in mended.stdout
    assert "all 6 the same" in mended.stdout
    num_asked = len(failing.asked)
    assert "has all of this already" in forerun(*flags).stderr
    assert len(failing.asked) == num_asked


def test_a_run_in_which_every_system_fails_exits_with_1_and_names_them(
    questions: Path, servers: ExitStack, tmp_path: Path
) -> None:
    urls = {name: servers.enter_context(talking(Talker(breaks_at=1))) for name in ("one", "two")}
    flags = [flag for name, url in urls.items() for flag in ("--against", f"{name}={url}")]
    found = forerun("run", questions, "--only", "-o", tmp_path / "bench.jsonl", *flags, check=False)
    assert found.returncode == 1
    assert all(name in found.stderr for name in urls)
    assert "Traceback" not in found.stderr


def test_a_server_that_cannot_start_fails_the_run_and_the_others_finish(
    questions: Path, servers: ExitStack, tmp_path: Path
) -> None:
    """The model is an empty directory, so that what serves it exits at once."""
    record, model = tmp_path / "bench.jsonl", tmp_path / "empty-model"
    model.mkdir()
    url = servers.enter_context(talking(Talker()))
    words: list[str | Path] = ["run", questions, "--only", "-o", record, "--model", model, "--json"]
    words += ["--against", "transformers", "--against", f"other={url}", "--startup-timeout", "60"]
    found = forerun(*words, check=False)
    assert found.returncode == 1
    assert "transformers" in found.stderr
    assert "bench.transformers.log" in found.stderr
    assert re.search(r"\w+(Error|Model): ", found.stderr), "the last exception of the log"
    results = {each["who"]: each for each in json.loads(found.stdout)}
    assert results["other"]["sound"]
    assert not results["transformers"]["sound"]
    assert str(tmp_path) not in record.read_text(), "no path of this machine in the record"


def test_a_page_and_figures_come_from_the_record(questions: Path, servers: ExitStack, tmp_path: Path) -> None:
    record = tmp_path / "bench.jsonl"
    race(questions, servers, record, "--concurrency", "1,2", plain=Talker(), forerun=Talker(piece=3))
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    table = forerun("report", record, "-o", page, "--figures", figures, "--markdown").stdout
    assert "| **forerun** |" in table
    text = page.read_text()
    assert text.count("<svg") == 2 * 3 + 1
    assert "prefers-color-scheme: dark" in text
    figures_of_page = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "var(--ours)" in figures_of_page
    assert "currentColor" in figures_of_page
    assert not re.search("#23272e|#1a7f5a|#000000|#ffffff", figures_of_page), "colours of one scheme"
    assert not re.search(r"<script|<link|<img|src=|href=.http|@import", text)  # it needs nothing else
    assert {each.name for each in figures.iterdir()} == {
        "bench-speed.png",
        "bench-waiting.png",
        "bench-survival.png",
        "bench-throughput.png",
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("code-editing", "--against", "vllm"), "give --model"),
        (("code-editing", "--only", "--against", "vlm"), "did you mean 'vllm'?"),
        (("nowhere.jsonl",), "a suite is a file, or code-editing"),
        (
            ("code-editing", "--only", "--against", "a=http://127.0.0.1:9", "--baseline", "a=b"),
            "takes no part",
        ),
    ],
)
def test_mistakes_are_told_in_a_line(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    found = forerun("run", *words, "-o", tmp_path / "x.jsonl", check=False)
    assert found.returncode == 1
    assert told in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("words", [("report", "RECORD", "-o", "OUT"), ("run", "QUESTIONS", "-o", "OUT")])
def test_an_output_that_cannot_be_written_fails_before_any_work(
    words: tuple[str, ...], questions: Path, servers: ExitStack, tmp_path: Path
) -> None:
    talker = Talker()
    record = tmp_path / "bench.jsonl"
    url = servers.enter_context(talking(talker))
    asked = ("--only", "--against", f"plain={url}")
    forerun("run", questions, *asked, "-o", record)
    num_asked, output = len(talker.asked), tmp_path / "missing" / "folder" / "output"
    names = {"RECORD": record, "QUESTIONS": questions, "OUT": output}
    command = [names.get(word, word) for word in words] + list(asked if words[0] == "run" else ())
    found = forerun(*command, check=False)
    assert found.returncode == 1
    assert str(output) in found.stderr
    assert "Traceback" not in found.stderr
    assert len(talker.asked) == num_asked


def test_figures_that_cannot_be_written_fail_before_any_work(
    questions: Path, servers: ExitStack, tmp_path: Path
) -> None:
    record, occupied = tmp_path / "bench.jsonl", tmp_path / "a-file"
    occupied.write_text("not a directory")
    forerun(
        "run", questions, "--only", "--against", f"a={servers.enter_context(talking(Talker()))}", "-o", record
    )
    found = forerun("report", record, "--figures", occupied / "figures", check=False)
    assert found.returncode == 1
    assert "a-file" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("command", ["run", "report"])
def test_an_empty_input_file_is_an_error(command: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    output = ("-o", str(tmp_path / "x.jsonl")) if command == "run" else ()
    found = forerun(command, empty, *output, check=False)
    assert found.returncode == 1
    assert "empty.jsonl" in found.stderr
    assert "Traceback" not in found.stderr


TUNED: list[dict[str, Any]] = [
    {
        "name": "forerun tune",
        "predicted_of_measured": 1.2,
        "measured": {"gain": {"value": 1.25, "low": 1.1, "high": 1.4}, "same": 6, "num": 6},
        "seconds": 60.0,
    },
    {"name": "suffixes", "gain": 1.3, "seconds": 600.0},
    {
        "name": "what tune says over the best of the sweep",
        "gain": 0.99,
        "low": 0.9,
        "high": 1.1,
        "seconds": 0,
    },
    {"name": "verdict", "use": "n-grams", "best": "suffixes"},
]
"""A sweep, as far as a table tells of it."""


def test_a_stale_table_is_found_out(questions: Path, servers: ExitStack, tmp_path: Path) -> None:
    documents = [tmp_path / name for name in ("README.md", "page.md", "tuning.md")]
    race(questions, servers, tmp_path / "bench.jsonl", plain=Talker(), forerun=Talker(piece=3))
    shutil.copy(tmp_path / "bench.jsonl", tmp_path / "bench-eight.jsonl")
    swept = tmp_path / "tune-chat.json"
    swept.write_text(json.dumps({"lines": TUNED}))
    script = Path(__file__).parents[2] / "scripts" / "readme.py"

    def make(*flags: str) -> subprocess.CompletedProcess[str]:
        where = zip(("--readme", "--page", "--tuning"), documents, strict=True)
        words = [sys.executable, script, "--records", tmp_path, *(word for one in where for word in one)]
        return subprocess.run([*words, *flags], capture_output=True, text=True, check=False)

    for document in documents:
        document.write_text(
            "# A project\n\n<!-- from the record: begin --><!-- from the record: end -->\n\nMore.\n"
        )
    assert make("--check").returncode == 1
    assert make().returncode == 0
    assert "Where forerun is not the fastest" in documents[1].read_text()
    assert all("| **forerun** |" in document.read_text() for document in documents[:2])
    assert "| chat | n-grams | 1.20 | 1.25 [1.10, 1.40] | suffixes |" in documents[2].read_text()
    assert make("--check").returncode == 0
    for document in documents:
        fresh = document.read_text()
        assert fresh.endswith("More.\n")
        stale = re.sub(r"\d\.\d\d", "9.99", fresh, count=1)
        document.write_text(stale)
        told = make("--check")
        assert told.returncode == 1
        assert f"the table of {document.name} is not what" in told.stderr
        assert "run `make readme`" in told.stderr
        assert document.read_text() == stale
        document.write_text(fresh)
    swept.write_text(json.dumps({"lines": TUNED[:-1]}))
    assert "the sweep of chat did not come to its end" in make().stderr
    swept.write_text(json.dumps({"lines": TUNED}).replace('"same": 6', '"same": 5'))
    assert make().returncode == 0
    assert "| 1.25 [1.10, 1.40] ✗ |" in documents[2].read_text()
