"""Flags that were renamed: the old names still work and print a notice."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from forerun.cli.main import app


@pytest.mark.parametrize(
    ("args", "old", "new"),
    [
        (["generate", "no-such-model", "--prompt", "a", "--batch", "2"], "--batch", "--concurrency"),
        (["bench", "run", "no-such-file", "--tokens", "16"], "--tokens", "--max-tokens"),
        (["bench", "run", "no-such-file", "--prompts", "3"], "--prompts N", "--num-prompts"),
        (["tune", ".", "--prompts", "no-such-file", "--num", "2"], "--num", "--num-prompts"),
        (["tune", ".", "--prompts", "no-such-file", "--tokens=16"], "--tokens", "--max-tokens"),
        (["tune", ".", "--prompts", "no-such-file", "--page", "tune.html"], "--page", "--report"),
        (["replay", "no-such-file", "--shared"], "--shared", "--share-outputs"),
        (["audit", "greedy", "--candidate", "x", "--at-once", "2"], "--at-once", "--concurrency"),
        (["audit", "exact", "--html", "missing/x.html"], "--html", "--output"),
    ],
)
def test_an_old_flag_works_and_names_the_new_one(
    args: list[str], old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, args)
    assert result.exit_code != 0  # a missing file or server, not the flag
    assert "No such option" not in result.output
    assert f"{old} is deprecated: use {new}" in result.stderr


def test_the_number_of_prompts_can_still_be_given_as_prompts(tmp_path: Path) -> None:
    from forerun.cli.bench.run import _suites

    assert _suites(["a"], ["3"], 4) == (["a"], 3)
    assert _suites(None, ["b.jsonl"], 4) == (["b.jsonl"], 4)


def test_a_benchmark_needs_prompts() -> None:
    result = CliRunner().invoke(app, ["bench", "run"])
    assert result.exit_code == 2
    assert "--prompts" in result.output
