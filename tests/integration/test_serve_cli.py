"""`forerun serve --dry-run` and `forerun doctor`: what a person sees before any engine starts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forerun.cli.main import app


def shown(*args: str) -> list[str]:
    result = CliRunner().invoke(app, ["serve", *args, "--dry-run"])
    assert result.exit_code == 0, result.output
    return shlex.split(result.stdout)


def value_of(words: list[str], flag: str) -> dict[str, object]:
    value: dict[str, object] = json.loads(words[words.index(flag) + 1])
    return value


def test_nothing_to_set() -> None:
    words = shown("some/model", "--port", "8000", "--enforce-eager")
    assert words[:6] == ["vllm", "serve", "some/model", "--port", "8000", "--enforce-eager"]
    assert value_of(words, "--additional-config") == {"forerun": {}}
    assert value_of(words, "--speculative-config")["model"] == "forerun.engines.vllm.Nobody"


def test_flags_and_a_file_of_settings_go_together(tmp_path: Path) -> None:
    file = tmp_path / "speculation.json"
    file.write_text('{"max_draft": 6, "drafters": ["ngram"]}')
    corpus = tmp_path / "corpus.fri"
    corpus.write_bytes(b"")
    words = shown("m", "--speculation", str(file), "--drafter", "suffix", "--corpus", str(corpus))
    assert value_of(words, "--additional-config") == {
        "forerun": {"max_draft": 6, "drafters": ["suffix"], "corpora": [str(corpus)]}
    }
    drafted = shown("m", "--draft-model", "small", "--share-outputs")
    assert value_of(drafted, "--speculative-config")["method"] == "draft_model"
    assert value_of(drafted, "--additional-config") == {
        "forerun": {"draft_model": "small", "share_outputs": True}
    }


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["m", "--drafter", "sufix"], "no drafter is called 'sufix'"),
        (["m", "--speculative-config", "{}"], "is set by forerun serve"),
        (["--tensor-parallel-size", "2", "m"], "the model comes first"),
    ],
)
def test_what_cannot_be_meant_is_told_in_a_line(args: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", *args, "--dry-run"])
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_the_doctor_finds_nothing_broken_here() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    findings = {each["what"]: each["outcome"] for each in json.loads(result.stdout)}
    assert result.exit_code == 0, findings
    assert findings["guessing: suffix"] == "fine"
    assert "broken" not in findings.values()


def test_the_doctor_says_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise KeyError("nobody")

    monkeypatch.setattr("forerun.drafters.registry.make_drafters", fail)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "KeyError: 'nobody'" in result.output


def test_the_doctor_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.cli.doctor._version", lambda _: None)
    result = CliRunner().invoke(app, ["doctor"])
    assert "pip install 'forerun[plots]'" in result.output
