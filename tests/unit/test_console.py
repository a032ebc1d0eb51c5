"""Checks of output paths, and deprecated option names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from forerun.cli.console import check_figure, check_writable, renamed_options
from forerun.errors import MissingExtra, OutputNotWritable


def test_a_writable_path_is_left_as_it_is(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.html")
    (tmp_path / "old.html").write_text("kept")
    check_writable(tmp_path / "old.html")
    assert [file.name for file in tmp_path.iterdir()] == ["old.html"]
    assert (tmp_path / "old.html").read_text() == "kept"


def test_a_dangling_link_is_checked_at_its_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    check_writable(tmp_path / "link")
    assert [file.name for file in tmp_path.iterdir()] == ["link"]


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_writable(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing/page.html", "does not exist"),
        ("folder", "is a directory"),
        ("file/page.html", "not a directory"),
        ("x" * 300, "too long"),
    ],
)
def test_a_path_that_cannot_be_written_is_named_with_the_reason(
    tmp_path: Path, path: str, reason: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(OutputNotWritable, match=reason) as caught:
        check_writable(tmp_path / path)
    assert str(tmp_path / path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, OSError)


def test_a_missing_permission_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(OutputNotWritable, match="permission denied"):
        check_writable(tmp_path / "page.html")


def test_a_figure_needs_a_known_format_and_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OutputNotWritable, match=r"\.png, \.svg or \.pdf"):
        check_figure(tmp_path / "figure.xyz")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra):
        check_figure(tmp_path / "figure.png")


app = typer.Typer()


@app.command(cls=renamed_options({"--most": "--num-prompts", "--verbatim": "--exact"}))
def command(
    num_prompts: Annotated[int, typer.Option(min=1)] = 4,
    exact: bool = False,
    rest: Annotated[list[str] | None, typer.Argument()] = None,
) -> None:
    """Print the values."""
    typer.echo(f"{num_prompts} {exact} {rest or []}")


@pytest.mark.parametrize(
    ("arguments", "printed", "notices"),
    [
        (["--num-prompts", "2"], "2 False []", []),
        (["--most", "2"], "2 False []", ["--most", "--num-prompts"]),
        (["--most=2", "--verbatim"], "2 True []", ["--most", "--num-prompts", "--verbatim", "--exact"]),
        (["--", "--most"], "4 False ['--most']", []),
    ],
)
def test_a_deprecated_option_name_works_with_a_notice(
    arguments: list[str], printed: str, notices: list[str]
) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.stdout.strip() == printed
    assert [part.strip(":;") for part in result.stderr.split() if part.startswith("--")] == notices


def test_a_deprecated_option_name_is_validated_and_absent_from_the_help() -> None:
    assert CliRunner().invoke(app, ["--most", "0"]).exit_code == 2
    assert "--most" not in CliRunner().invoke(app, ["--help"]).output
