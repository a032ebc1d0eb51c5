"""`forerun bench` against streaming servers: speeds, outputs, failures, interruptions, pages."""

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
from statistics import geometric_mean, median
from typing import Any

import pytest

from zoo.streaming_servers import StreamingServer, run_streaming_server

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


def forerun(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forerun", "bench", *arguments]
    wide = {**os.environ, "COLUMNS": "160"}
    return subprocess.run(command, capture_output=True, text=True, check=check, env=wide)


def run_bench(
    questions: Path, servers: ExitStack, record: Path, *flags: str, **systems: StreamingServer
) -> Any:
    """Benchmark these servers, with the first as the baseline of all, and return the results."""
    first = next(iter(systems))
    arguments: list[str | Path] = ["run", questions, "--only", "-o", record, "--json", *flags]
    for name, server in systems.items():
        arguments += ["--against", f"{name}={servers.enter_context(run_streaming_server(server))}"]
        arguments += ["--baseline", f"{name}={first}"]
    return json.loads(forerun(*arguments).stdout)


def recorded_speedup(record: Path, system: str, baseline: str) -> float:
    """The speedup from the recorded times: ratios of decoding speeds, median by category, geometric mean."""
    speeds: dict[str, dict[tuple[str, str], float]] = {system: {}, baseline: {}}
    for row in map(json.loads, record.read_text().splitlines()):
        if row.get("system") not in speeds or (row["case"]["temperature"], row["case"]["concurrency"]) != (
            0,
            1,
        ):
            continue
        seconds = row["times"][-1] - row["times"][0]
        key = row["case"]["category"], row["case"]["question"]
        speeds[row["system"]][key] = (row["num_tokens"] - row["counts"][0]) / seconds
    ratios: dict[str, list[float]] = {}
    for key, speed in speeds[system].items():
        ratios.setdefault(key[0], []).append(speed / speeds[baseline][key])
    return geometric_mean(map(median, ratios.values()))


def test_speeds_are_ratios_to_the_baseline_and_outputs_are_compared(
    questions: Path, servers: ExitStack, tmp_path: Path
) -> None:
    stock, fast = StreamingServer(), StreamingServer(tokens_per_event=4)
    wrong = StreamingServer(token_at=lambda question, at: at)
    record = tmp_path / "bench.jsonl"
    systems = {"stock": stock, "fast": fast, "wrong": wrong}
    flags = ("--concurrency", "1,4", "--temperature", "0,1")
    results = run_bench(questions, servers, record, *flags, **systems)
    assert len(results) == 3 * 2 * 2
    by_name = {
        each["system"]: each for each in results if (each["temperature"], each["concurrency"]) == (0, 1)
    }
    ours = by_name["fast"]["by_category"]
    assert set(ours) == {"geo. mean", "mt-bench", "qa"}
    assert ours["geo. mean"]["speedup"]["value"] == pytest.approx(recorded_speedup(record, "fast", "stock"))
    assert ours["geo. mean"]["tokens_per_step"] == pytest.approx(20 / 5)
    assert by_name["fast"]["output"]["num_identical"] == QUESTIONS
    assert by_name["wrong"]["output"]["num_undecided"] == QUESTIONS
    assert "6 undecided" in forerun("report", record).stdout
    seeds = [body["seed"] for body in stock.requests if body["temperature"] == 1]
    assert len(set(seeds)) == QUESTIONS
    assert sorted(seeds) == sorted(body["seed"] for body in fast.requests if body["temperature"] == 1)


def test_systems_alternate_in_random_order(questions: Path, servers: ExitStack, tmp_path: Path) -> None:
    record = tmp_path / "bench.jsonl"
    run_bench(questions, servers, record, stock=StreamingServer(), fast=StreamingServer(tokens_per_event=2))
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    order = [row["system"] for row in rows if "system" in row]
    turns = [tuple(order[at : at + 2]) for at in range(0, len(order), 2)]
    assert len(turns) == QUESTIONS
    assert set(turns) == {("stock", "fast"), ("fast", "stock")}, "neither system always comes first"


def test_a_failing_system_is_marked_and_its_requests_are_repeated_on_resume(
    questions: Path, servers: ExitStack, tmp_path: Path
) -> None:
    record, stock, failing = (
        tmp_path / "bench.jsonl",
        StreamingServer(),
        StreamingServer(tokens_per_event=2, breaks_from=6),
    )
    flags: list[str | Path] = ["run", questions, "--only", "-o", record, "--baseline", "failing=stock"]
    flags += ["--against", f"stock={servers.enter_context(run_streaming_server(stock))}"]
    flags += ["--against", f"failing={servers.enter_context(run_streaming_server(failing))}"]
    failed = forerun(*flags, check=False)
    assert failed.returncode == 1
    assert "failing" in failed.stderr.splitlines()[-1]
    assert "stock" not in failed.stderr.splitlines()[-1], "the other system did not fail"
    assert "✗" in failed.stdout
    assert "its baseline: 3 (" in failed.stdout
    failing.breaks_from, answered = 10**9, len(stock.requests)
    resumed = forerun(*flags)
    assert len(stock.requests) > answered, "the baseline's requests are repeated with them"
    assert "✗" not in resumed.stdout
    assert "6/6 identical" in resumed.stdout
    num_requests = len(failing.requests)
    assert record.name in forerun(*flags).stderr
    assert len(failing.requests) == num_requests


def test_a_run_in_which_every_system_fails_exits_with_1_and_names_them(
    questions: Path, servers: ExitStack, tmp_path: Path
) -> None:
    urls = {
        name: servers.enter_context(run_streaming_server(StreamingServer(breaks_from=1)))
        for name in ("one", "two")
    }
    flags = [flag for name, url in urls.items() for flag in ("--against", f"{name}={url}")]
    found = forerun("run", questions, "--only", "-o", tmp_path / "bench.jsonl", *flags, check=False)
    assert found.returncode == 1
    assert all(name in found.stderr for name in urls)
    assert "Traceback" not in found.stderr


def test_a_server_that_cannot_start_fails_the_run_and_the_others_finish(
    questions: Path, servers: ExitStack, tmp_path: Path
) -> None:
    """The model is an empty directory, so that its server exits at once."""
    record, model = tmp_path / "bench.jsonl", tmp_path / "empty-model"
    model.mkdir()
    url = servers.enter_context(run_streaming_server(StreamingServer()))
    arguments: list[str | Path] = ["run", questions, "--only", "-o", record, "--model", model, "--json"]
    arguments += ["--against", "transformers", "--against", f"other={url}", "--startup-timeout", "60"]
    found = forerun(*arguments, check=False)
    assert found.returncode == 1
    assert "transformers" in found.stderr
    assert "bench.transformers.log" in found.stderr
    assert re.search(r"\w+(Error|Model): ", found.stderr), "the last exception in the log"
    results = {each["system"]: each for each in json.loads(found.stdout)}
    assert results["other"]["is_valid"]
    assert not results["transformers"]["is_valid"]
    assert str(tmp_path) not in record.read_text(), "no path of this machine in the record"


def test_a_page_and_figures_come_from_the_record(questions: Path, servers: ExitStack, tmp_path: Path) -> None:
    record = tmp_path / "bench.jsonl"
    run_bench(
        questions,
        servers,
        record,
        "--concurrency",
        "1,2",
        stock=StreamingServer(),
        forerun=StreamingServer(tokens_per_event=3),
    )
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    table = forerun("report", record, "-o", page, "--figures", figures, "--markdown").stdout
    assert "| **forerun** |" in table
    text = page.read_text()
    assert text.count("<svg") == 2 * 3 + 1
    assert "prefers-color-scheme: dark" in text
    figures_of_page = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "var(--green)" in figures_of_page
    assert "currentColor" in figures_of_page
    assert not re.search("#23272e|#1a7f5a|#000000|#ffffff", figures_of_page), "colours of a single scheme"
    assert not re.search(r"<script|<link|<img|src=|href=.http|@import", text)  # self-contained
    assert {each.name for each in figures.iterdir()} == {
        "bench-speed.png",
        "bench-itl.png",
        "bench-survival.png",
        "bench-throughput.png",
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("code-editing", "--against", "vllm"), "give --model"),
        (("code-editing", "--only", "--against", "vlm"), "did you mean 'vllm'?"),
        (("nowhere.jsonl",), "code-editing"),
        (
            ("code-editing", "--only", "--against", "a=http://127.0.0.1:9", "--baseline", "a=b"),
            "takes no part",
        ),
    ],
)
def test_invalid_arguments_give_an_error_without_a_traceback(
    arguments: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    found = forerun("run", *arguments, "-o", tmp_path / "x.jsonl", check=False)
    assert found.returncode == 1
    assert expected in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("arguments", [("report", "RECORD", "-o", "OUT"), ("run", "QUESTIONS", "-o", "OUT")])
def test_an_output_that_cannot_be_written_fails_before_any_work(
    arguments: tuple[str, ...], questions: Path, servers: ExitStack, tmp_path: Path
) -> None:
    server = StreamingServer()
    record = tmp_path / "bench.jsonl"
    url = servers.enter_context(run_streaming_server(server))
    systems = ("--only", "--against", f"stock={url}")
    forerun("run", questions, *systems, "-o", record)
    num_requests, output = len(server.requests), tmp_path / "missing" / "folder" / "output"
    names = {"RECORD": record, "QUESTIONS": questions, "OUT": output}
    command = [names.get(word, word) for word in arguments] + list(systems if arguments[0] == "run" else ())
    found = forerun(*command, check=False)
    assert found.returncode == 1
    assert str(output) in found.stderr
    assert "Traceback" not in found.stderr
    assert len(server.requests) == num_requests


def test_figures_that_cannot_be_written_fail_before_any_work(
    questions: Path, servers: ExitStack, tmp_path: Path
) -> None:
    record, occupied = tmp_path / "bench.jsonl", tmp_path / "a-file"
    occupied.write_text("not a directory")
    forerun(
        "run",
        questions,
        "--only",
        "--against",
        f"a={servers.enter_context(run_streaming_server(StreamingServer()))}",
        "-o",
        record,
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
        "predicted_for_measured": 1.2,
        "measured": {"speedup": {"value": 1.25, "low": 1.1, "high": 1.4}, "num_identical": 6, "num": 6},
        "seconds": 60.0,
    },
    {"name": "suffixes", "speedup": 1.3, "seconds": 600.0},
    {
        "name": "recommendation over the best of the sweep",
        "speedup": 0.99,
        "low": 0.9,
        "high": 1.1,
        "seconds": 0,
    },
    {"name": "verdict", "use": "n-grams", "best": "suffixes"},
]
"""The fields of a sweep that the table uses."""

OLD_NAMES = {
    "predicted_for_measured": "predicted_of_measured",
    "speedup": "gain",
    "num_identical": "same",
    "recommendation over the best of the sweep": "what tune says over the best of the sweep",
}
"""Names of 0.1 in records of sweeps."""


def with_old_names(text: str) -> str:
    for name, old in OLD_NAMES.items():
        text = text.replace(f'"{name}"', f'"{old}"')
    return text


def test_a_stale_table_fails_the_check(questions: Path, servers: ExitStack, tmp_path: Path) -> None:
    documents = [tmp_path / name for name in ("README.md", "page.md", "tuning.md")]
    run_bench(
        questions,
        servers,
        tmp_path / "bench.jsonl",
        stock=StreamingServer(),
        forerun=StreamingServer(tokens_per_event=3),
    )
    shutil.copy(tmp_path / "bench.jsonl", tmp_path / "bench-eight.jsonl")
    swept = tmp_path / "tune-chat.json"
    swept.write_text(json.dumps({"lines": TUNED}))
    (tmp_path / "tune-old.json").write_text(with_old_names(json.dumps({"lines": TUNED})))
    script = Path(__file__).parents[2] / "scripts" / "readme.py"

    def make(*flags: str) -> subprocess.CompletedProcess[str]:
        where = zip(("--readme", "--page", "--tuning"), documents, strict=True)
        arguments = [sys.executable, script, "--records", tmp_path, *(each for one in where for each in one)]
        return subprocess.run([*arguments, *flags], capture_output=True, text=True, check=False)

    for document in documents:
        document.write_text(
            "# A project\n\n<!-- from the record: begin --><!-- from the record: end -->\n\nMore.\n"
        )
    assert make("--check").returncode == 1
    assert make().returncode == 0
    assert "Where forerun is not the fastest" in documents[1].read_text()
    assert all("| **forerun** |" in document.read_text() for document in documents[:2])
    assert "| stock |" in documents[1].read_text()
    assert "| stock |" not in documents[0].read_text(), "README has a selection of the systems"
    for prompts in ("chat", "old"):
        row = f"| {prompts} | n-grams | 1.20 | 1.25 [1.10, 1.40] | suffixes | 0.99 [0.90, 1.10] | 60 | 600 |"
        assert row in documents[2].read_text()
    assert make("--check").returncode == 0
    for document in documents:
        fresh = document.read_text()
        assert fresh.endswith("More.\n")
        stale = re.sub(r"\d\.\d\d", "9.99", fresh, count=1)
        document.write_text(stale)
        failed = make("--check")
        assert failed.returncode == 1
        assert document.name in failed.stderr
        assert "make readme" in failed.stderr
        assert document.read_text() == stale
        document.write_text(fresh)
    swept.write_text(json.dumps({"lines": TUNED[:-1]}))
    unfinished = make()
    assert unfinished.returncode != 0
    assert "chat" in unfinished.stderr
    swept.write_text(json.dumps({"lines": TUNED}).replace('"num_identical": 6', '"num_identical": 5'))
    assert make().returncode == 0
    assert "| 1.25 [1.10, 1.40] ✗ |" in documents[2].read_text()
