"""The reference pages name everything that the program has, and a stale one is noticed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import forerun
from forerun import errors
from forerun.cli.main import app
from forerun.config import SpeculationConfig

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def reference(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts" / "reference.py"
    return subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )


def commands(command: Any, path: str = "forerun") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{path} {name}")


COMMANDS = dict(commands(typer.main.get_command(app)))


def section(page: str, path: str) -> str:
    """The part of a page below the heading of a command, up to the next heading."""
    found = re.search(rf"^##+ {path}\n(.*?)(?=^##|\Z)", page, flags=re.DOTALL | re.MULTILINE)
    assert found, f"{path} has no section"
    return found[1]


def test_the_reference_pages_are_fresh() -> None:
    checked = reference("--check")
    assert checked.returncode == 0, checked.stderr


def test_a_stale_page_is_reported_with_its_remedy_and_then_rewritten(tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE, tmp_path / "reference")
    page = folder / "configuration.md"
    fresh = page.read_text()
    page.write_text(fresh.replace("`max_draft`", "`longest_draft`"))
    checked = reference("--check", "--folder", folder)
    assert checked.returncode == 1
    assert "configuration.md" in checked.stderr
    assert "make reference" in checked.stderr
    assert reference("--folder", folder).returncode == 0
    rewritten = page.read_text()
    assert "longest_draft" not in rewritten.split("<!-- end: configuration -->")[0]
    assert reference("--check", "--folder", folder).returncode == 0


def test_a_page_without_its_marks_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE, tmp_path / "reference")
    page = folder / "metrics.md"
    page.write_text(page.read_text().replace("<!-- end: metrics -->", ""))
    refused = reference("--folder", folder)
    assert refused.returncode != 0
    assert "end: metrics" in refused.stderr


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_of_every_command_is_in_the_reference(path: str) -> None:
    part = section((REFERENCE / "cli.md").read_text(), path)
    for param in COMMANDS[path].params:
        if not getattr(param, "hidden", False) and param.param_type_name == "option":
            assert all(f"`{name}`" in part for name in param.opts), param.opts


def test_the_reference_of_the_command_line_has_no_control_characters() -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", (REFERENCE / "cli.md").read_text())


def test_every_configuration_key_has_a_description_and_a_row() -> None:
    page = (REFERENCE / "configuration.md").read_text()
    for key, field in SpeculationConfig.model_fields.items():
        assert field.description
        assert f"| `{key}` |" in page


def test_the_quickstart_quotes_what_replay_prints() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "forerun", "replay", "tests/data/transcripts.jsonl", "--json"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    mean = json.loads(printed)["geometric_mean"]
    quickstart = (ROOT / "docs" / "quickstart.md").read_text()
    assert f"{mean:.2f} tokens per step" in quickstart


def test_every_public_name_is_in_the_api_reference() -> None:
    shown = re.findall(r"^::: (\S+)", (REFERENCE / "api.md").read_text(), flags=re.MULTILINE)
    public = {f"forerun.{name}" for name in forerun.__all__ if not name.startswith("__")}
    assert public - {"forerun.ForerunError"} <= set(shown)
    assert errors.__name__ in shown
