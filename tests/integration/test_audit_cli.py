"""`forerun audit` from the command line, against zoo servers of a tiny Llama."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from forerun.audit.report import INTERRUPTED
from forerun.cli.audit.servers import is_url
from forerun.cli.main import app
from forerun.errors import MissingExtra
from zoo.server import ZooServer, run_server
from zoo.speculation import Defect, Logits

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 1, 4, 1], [2, 7, 1, 8, 2, 8, 1, 8, 2, 7, 1]]
RUNNER = CliRunner()
SCHEME = {"none", "currentColor", "var(--green)", "var(--red)", "var(--blue)", "var(--grey)"}
"""Colours of figures that follow the reader's colour scheme."""


@pytest.fixture(scope="module")
def llama(tiny_llama: Any) -> Logits:
    @cache
    def logits(text: tuple[int, ...]) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(tiny_llama(torch.tensor([text])).logits[0, -1].double().numpy())

    return logits


@pytest.fixture(scope="module")
def draft(llama: Logits) -> Logits:
    """The target with an error on every logit."""
    errors = np.random.default_rng(0).normal(size=16)
    return lambda text: llama(text) + errors


@pytest.fixture(scope="module")
def model(tiny_llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny_llama.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):  # completions of the zoo do not end early
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": None}))
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return file


@pytest.fixture
def baseline(llama: Logits, draft: Logits) -> Iterator[str]:
    with run_server(ZooServer(llama, draft, seed=7)) as url:
        yield url


@pytest.fixture
def models_and_baseline(llama: Logits, draft: Logits, baseline: str) -> tuple[Logits, Logits, str]:
    return llama, draft, baseline


def run_audit(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    result = RUNNER.invoke(app, ["audit", *map(str, arguments), "--json"])
    assert result.exit_code in (0, 1, 2), result.output
    return result.exit_code, json.loads(result.stdout) if result.stdout else {}


SAMPLED = (
    "--settings",
    "top-k 8",
    "--settings",
    "temperature 1",
    "--num-samples",
    "256",
    "--max-samples",
    "16",
)


@pytest.mark.parametrize(("defect", "code"), [(Defect.NONE, 0), (Defect.NO_RESIDUAL, 1), (Defect.ARGMAX, 1)])
def test_sampled_against_a_model(
    llama: Logits, draft: Logits, model: Path, prompts: Path, tmp_path: Path, defect: Defect, code: int
) -> None:
    keep, page = tmp_path / "samples.jsonl", tmp_path / "page.html"
    with run_server(ZooServer(llama, draft, defect)) as url:
        arguments = ("--reference", model, "--prompts", prompts, *SAMPLED, "--keep", keep, "--output", page)
        exit_code, report = run_audit("sampled", "--candidate", url, *arguments)
    assert exit_code == code
    assert report["verdict"] == ("no difference found", "difference")[code]
    assert (report["e_value"] >= 20) == bool(code)
    assert report["num_samples"] == sum(row["num_samples"] for row in report["rows"])
    assert {row["epsilon"] for row in report["rows"]} == {0.001}  # float32 on both sides; never zero
    assert any("draft tokens were accepted" in note for note in report["notes"])
    assert [each["bias"] for each in report["power"]] == [0.01, 0.05]
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "prefers-color-scheme: dark" in text
    figures = text[text.index("<svg") : text.rindex("</svg>")]
    assert set(re.findall(r"(?:fill|stroke): ([^;\"]+)", figures)) <= SCHEME
    assert not re.search(r'(src|href)="http', text)
    assert report["verdict"] in text


def test_the_distance_is_bounded_if_few_tokens_are_possible(
    llama: Logits, draft: Logits, model: Path, prompts: Path
) -> None:
    with run_server(ZooServer(llama, draft)) as url:
        arguments = (
            "--reference",
            model,
            "--prompts",
            prompts,
            "--settings",
            "cool, top-k 8",
            "--bound",
            "0.1",
        )
        code, report = run_audit("sampled", "--candidate", url, *arguments)
    assert code == 0
    assert report["tv_bound"] <= 0.105


@pytest.mark.parametrize(("defect", "code"), [(Defect.NONE, 0), (Defect.GARBAGE, 1)])
def test_sampled_against_a_server(
    llama: Logits, draft: Logits, baseline: str, prompts: Path, defect: Defect, code: int
) -> None:
    with run_server(ZooServer(llama, draft, defect)) as url:
        arguments = ("--baseline", baseline, "--prompts", prompts, *SAMPLED)
        exit_code, report = run_audit("sampled", "--candidate", url, *arguments)
    assert exit_code == code
    assert 0 < report["tv_bound"] <= 1


@pytest.mark.parametrize(
    ("against", "defect", "code"),
    [
        ("server", Defect.NONE, 0),
        ("server", Defect.GREEDY_RATIO, 1),
        ("model", Defect.NONE, 0),
        ("model", Defect.GREEDY_RATIO, 1),
    ],
)
def test_greedy(
    models_and_baseline: tuple[Logits, Logits, str],
    model: Path,
    prompts: Path,
    tmp_path: Path,
    defect: Defect,
    code: int,
    against: str,
) -> None:
    llama, draft, baseline = models_and_baseline
    page = tmp_path / "page.html"
    with run_server(ZooServer(llama, draft, defect)) as url:
        compared = (
            ("--baseline", baseline, "--reference", model) if against == "server" else ("--baseline", model)
        )
        arguments = (
            *compared,
            "--prompts",
            prompts,
            "--max-tokens",
            "32",
            "--precision",
            "float32",
            "--output",
            page,
        )
        exit_code, report = run_audit("greedy", "--candidate", url, *arguments)
    assert exit_code == code
    assert report["findings"].get("difference", 0) == sum(
        row["finding"] == "difference" for row in report["rows"]
    )
    if code:
        worst = next(row for row in report["rows"] if row["finding"] == "difference")
        assert worst["gap"] > worst["bound"] > 0
        assert worst["bound"] < 1e-3
        assert "<svg" in page.read_text()


@pytest.mark.parametrize(("defect", "code"), [(Defect.NONE, 0), (Defect.SEED_DRIFT, 1)])
def test_seeded(
    llama: Logits, draft: Logits, baseline: str, model: Path, prompts: Path, defect: Defect, code: int
) -> None:
    with run_server(ZooServer(llama, draft, defect)) as url:
        arguments = ("--baseline", baseline, "--reference", model, "--prompts", prompts, "--max-tokens", "24")
        exit_code, report = run_audit("seeded", "--candidate", url, *arguments)
    assert exit_code == code
    assert (report["e_value"] >= 20) == bool(code)


def test_a_server_that_does_not_exist_gives_no_verdict(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.servers.endpoint._MAX_ATTEMPTS", 2)
    result = RUNNER.invoke(
        app, ["audit", "sampled", "--candidate", "http://127.0.0.1:9", "--reference", str(model)]
    )
    assert result.exit_code == 2
    assert "no verdict" in result.output
    assert "failed 2 times in a row" in result.output


def test_a_reference_or_a_baseline_is_required(baseline: str) -> None:
    result = RUNNER.invoke(app, ["audit", "sampled", "--candidate", baseline])
    assert result.exit_code == 2
    assert "--reference MODEL or --baseline URL" in result.output


def test_a_page_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.rendering.plots import as_svg

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[plots\]"):
        as_svg(lambda: None)


def test_a_page_that_cannot_be_written_gives_no_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("forerun.audit.exact.run.run", lambda: iter(()))
    result = RUNNER.invoke(app, ["audit", "exact", "--output", str(tmp_path / "nowhere" / "page.html")])
    assert result.exit_code == 2
    assert "no verdict: cannot write" in result.output


SAFETY_SECONDS = 60
"""A test that waits longer has failed."""


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a state of another process. The interval also lets its main thread block: on one core, an
    interrupt sent at the moment in which a request begins to hang had no effect.
    """
    deadline = time.monotonic() + SAFETY_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def restore_interrupt() -> None:
    """Make a child process interruptible where the test run itself ignores SIGINT, as background jobs do."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupted_audit_saves_its_samples_and_can_be_resumed(
    llama: Logits, draft: Logits, model: Path, prompts: Path, tmp_path: Path
) -> None:
    keep = tmp_path / "samples.jsonl"
    server = ZooServer(llama, draft, always="stall", after=40)  # never finished before the interrupt
    with run_server(server) as url:
        arguments = ["--candidate", url, "--reference", str(model), "--prompts", str(prompts)]
        arguments += ["--settings", "temperature 1", "--num-samples", "2000", "--max-samples", "16"]
        command = [sys.executable, "-m", "forerun", "audit", "sampled", *arguments, "--json"]
        process = subprocess.Popen(
            [*command, "--keep", keep],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ},
            preexec_fn=restore_interrupt,  # noqa: PLW1509 the child only resets a signal
        )
        wait_until(lambda: keep.exists() and keep.read_text().count("\n") > 3)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=SAFETY_SECONDS)
        report = json.loads(output)
        assert process.returncode == 2
        assert report["verdict"] == "no verdict"
        assert 0 < report["num_samples"] < 2000
        assert report["reason"] == INTERRUPTED
        assert any(f"--resume {keep}" in note for note in report["notes"])
        assert not any("metric" in note for note in report["notes"])  # the connection is closed
        server.always = ""
        code, whole = run_audit("sampled", *arguments, "--resume", keep)
    assert code == 0
    assert whole["num_samples"] == 2000


@pytest.mark.parametrize(("audit", "after"), [("greedy", 3), ("seeded", 3), ("sampled", 0), ("sampled", 40)])
def test_an_interrupted_audit_ends_at_once_and_reports_no_fault(
    llama: Logits, draft: Logits, prompts: Path, tmp_path: Path, audit: str, after: int
) -> None:
    hung = ZooServer(llama, draft, always="hang", after=after)
    with run_server(hung) as url:
        command = [sys.executable, "-m", "forerun", "audit", audit, "--candidate", url]
        command += ["--baseline", url, "--prompts", str(prompts)]
        command += ["--epsilon", "0.01"] if audit == "seeded" else []
        command += ["--keep", str(tmp_path / "samples.jsonl")] if audit == "sampled" else []
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ},
            preexec_fn=restore_interrupt,  # noqa: PLW1509 the child only resets a signal
        )
        wait_until(lambda: hung.num_requests > after)
        process.send_signal(signal.SIGINT)
        try:
            output, _ = process.communicate(timeout=SAFETY_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 2
    assert f"no verdict: {INTERRUPTED}" in output
    assert "fault" not in output
    assert "connection" not in output


@pytest.mark.parametrize("audit", ["greedy", "seeded"])
def test_servers_may_be_given_as_host_and_port(
    llama: Logits, draft: Logits, baseline: str, prompts: Path, audit: str
) -> None:
    with run_server(ZooServer(llama, draft)) as url:
        code, report = run_audit(
            audit,
            *("--candidate", url.removeprefix("http://"), "--baseline", baseline.removeprefix("http://")),
            *("--prompts", prompts, "--num-prompts", "1"),
        )
    assert code == 0
    assert report["verdict"] == "no difference found"


def test_a_directory_is_a_model_and_a_host_with_a_port_is_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model:1").mkdir()
    servers = ("http://a/v1", "https://a", "localhost", "localhost:8000", "10.0.0.1:80/v1", "[::1]:8000")
    assert all(map(is_url, servers))
    assert not any(map(is_url, ("model:1", "./model", "/models/llama", "Qwen/Qwen3-0.6B")))


def test_a_url_of_another_protocol_fails_at_once(baseline: str) -> None:
    result = RUNNER.invoke(app, ["audit", "greedy", "--candidate", "ftp://a", "--baseline", baseline])
    assert result.exit_code == 2
    assert "http:// or https://" in result.output


def test_deprecated_option_names_work_with_a_notice(
    llama: Logits, draft: Logits, baseline: str, prompts: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    old = ("--most", "1", "--tokens", "8", "--at-once", "2", "--html", str(page))
    with run_server(ZooServer(llama, draft)) as url:
        arguments = ["audit", "greedy", "--candidate", url, "--baseline", baseline, "--prompts", str(prompts)]
        result = RUNNER.invoke(app, [*arguments, *old, "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["num_samples"], report["num_tokens"], report["question"]["concurrency"]) == (1, 8, 2)
    assert page.exists()
    for name in ("--num-prompts", "--max-tokens", "--concurrency", "--output"):
        assert name in result.stderr


def test_an_empty_file_of_prompts_gives_no_verdict(baseline: str, tmp_path: Path) -> None:
    file = str(tmp_path / "prompts.jsonl")
    for text in ("", "\n\n", '{"prompt": ""}\n', '{"prompt": []}\n'):
        Path(file).write_text(text)
        result = RUNNER.invoke(
            app, ["audit", "greedy", "--candidate", baseline, "--baseline", baseline, "--prompts", file]
        )
        assert result.exit_code == 2
        assert "prompts.jsonl" in result.output
