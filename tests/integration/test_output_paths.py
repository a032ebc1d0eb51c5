"""Commands reject an output path that cannot be written before they do any work."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from forerun.cli.main import app

AUDITS = ("audit greedy", "audit seeded", "audit sampled")
NO_SERVER = ("--candidate", "http://127.0.0.1:9", "--baseline", "http://127.0.0.1:9")


def fail(*_: object, **__: object) -> None:
    pytest.fail("work began before the output path was checked")


@pytest.mark.parametrize("path", ["missing/output.png", "folder", "output.xyz"])
@pytest.mark.parametrize(
    ("command", "work"),
    [
        ("theory", "forerun.bench.figures.theory.draw_theory"),
        ("simulate laptop", "forerun.simulate.scenario.run_scenario"),
        ("simulate --grid", "forerun.simulate.grid.run_grid"),
    ],
)
def test_figures(command: str, work: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(work, fail)
    result = CliRunner().invoke(app, [*command.split(), "--plot", str(tmp_path / path)])
    assert result.exit_code == 1
    assert f"cannot write {tmp_path / path}" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("path", ["file/page.html", "folder"])
@pytest.mark.parametrize(
    ("command", "option", "work"),
    [
        ("audit exact", "--output", "forerun.audit.exact.run.run"),
        *((audit, "--output", "forerun.servers.endpoint.Endpoint.__init__") for audit in AUDITS),
        ("audit sampled", "--keep", "forerun.servers.endpoint.Endpoint.__init__"),
    ],
)
def test_audits(
    command: str, option: str, work: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr(work, fail)
    servers = () if command == "audit exact" else NO_SERVER
    result = CliRunner().invoke(app, [*command.split(), *servers, option, str(tmp_path / path)])
    assert result.exit_code == 2
    assert f"no verdict: cannot write {tmp_path / path}" in result.stderr


def test_samples_are_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "samples.jsonl").write_text("kept")
    monkeypatch.setattr("forerun.servers.endpoint.Endpoint.__init__", fail)
    arguments = ["audit", "sampled", *NO_SERVER, "--keep", str(tmp_path / "samples.jsonl")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "--resume" in result.stderr
    assert (tmp_path / "samples.jsonl").read_text() == "kept"


def test_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("text")
    monkeypatch.setattr("forerun.drafters.documents.load_tokenizer", fail)
    output = tmp_path / "missing" / "corpus.fri"
    arguments = ["corpus", "build", str(tmp_path / "text.txt"), "--tokenizer", "x", "-o", str(output)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert f"cannot write {output}" in result.stderr
