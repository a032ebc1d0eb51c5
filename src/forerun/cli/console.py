"""Shared by commands: progress bars, one-line errors, output paths, lists of numbers, renamed options."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from pathlib import Path

Number = TypeVar("Number", int, float)

_FIGURE_FORMATS: Final = (".png", ".svg", ".pdf")


class ProgressCallback(Protocol):
    """Called with the number of finished items and, if it changes, a new description."""

    def __call__(self, done: int, description: str | None = None, /) -> None:
        """Update the display."""


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[ProgressCallback]:
    """A progress bar on standard error with an estimate of the remaining time."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=total)

        def update(done: int, description: str | None = None, /) -> None:
            progress.update(task, completed=done, description=description)

        yield update


@contextmanager
def progress_lines(description: str, total: int, *, every: float = 20.0) -> Iterator[ProgressCallback]:
    """Progress for a log on standard error: a line at most every few seconds, with the remaining time."""
    began = last = time.monotonic()

    def update(done: int, description_now: str | None = None, /) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every and done:
            last, left = now, (now - began) * (total - done) / done
            what = description_now or description
            typer.echo(f"forerun: {what} {100 * done // total} %, about {left / 60:.0f} min left", err=True)

    typer.echo(f"forerun: {description} 0 %", err=True)
    yield update
    typer.echo(f"forerun: {description} done in {(time.monotonic() - began) / 60:.1f} min", err=True)


@contextmanager
def report_errors() -> Iterator[None]:
    """Print a `ForerunError` as one line on standard error and end the command with exit code 1."""
    from forerun.errors import ForerunError

    try:
        yield
    except ForerunError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error


def check_writable(path: Path) -> None:
    """Raise `OutputNotWritable` if `path` cannot be written.

    Commands call it before any work. An existing file keeps its content, and no new file is left behind.
    """
    from forerun.errors import OutputNotWritable

    try:
        problem = _why_not_writable(path)
    except OSError as error:
        problem = f"{(error.strerror or str(error)).lower()}; give another path"
    if problem is not None:
        raise OutputNotWritable(f"cannot write {path}: {problem}")


def _why_not_writable(path: Path) -> str | None:
    """The reason and the remedy if `path` cannot be opened for writing. Pipes and devices are not opened."""
    if path.is_dir():
        return "it is a directory; give the path of a file"
    folder = path.parent
    if not folder.exists():
        return f"the directory {folder} does not exist; create it (mkdir -p {folder}) or give another path"
    existed = path.exists()
    if not existed or path.is_file():
        path.open("ab").close()
    if not existed:
        path.resolve().unlink()
    return None


def check_figure(path: Path) -> None:
    """Raise unless a figure can be drawn to `path`: writable, a known format, and matplotlib installed."""
    from forerun.errors import OutputNotWritable
    from forerun.rendering.plots import require_matplotlib

    check_writable(path)
    if path.suffix.lower() not in _FIGURE_FORMATS:
        known = f"{', '.join(_FIGURE_FORMATS[:-1])} or {_FIGURE_FORMATS[-1]}"
        raise OutputNotWritable(
            f"cannot write {path}: unknown figure format {path.suffix!r}; end the name in {known}"
        )
    require_matplotlib()


def comma_separated(given: str, kind: Callable[[str], Number]) -> list[Number]:
    """The numbers of an option with a list of them; counts are at least 1."""
    try:
        found = [kind(each) for each in given.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"got {given!r}, expected numbers separated by commas") from error
    if any(each < 0 for each in found) or (kind is int and 0 in found):
        raise typer.BadParameter(
            f"got {given!r}, expected numbers that are not negative, and at least 1 for counts"
        )
    return found


def renamed_options(
    new_names: Mapping[str, str], base: type[TyperCommand] = TyperCommand
) -> type[TyperCommand]:
    """A command class that still accepts deprecated option names, given as {old: new} with dashes.

    A deprecated name works like its new name and prints a notice on standard error. It is absent from
    `--help`, from shell completion and from the generated reference. Usage::

        app.command(cls=renamed_options({"--at-once": "--concurrency"}))(function)
    """

    class RenamedOptions(base):  # type: ignore[valid-type, misc]
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            remaining: list[str] = super().parse_args(ctx, _with_new_names(args, new_names))
            return remaining

    return RenamedOptions


def _with_new_names(args: list[str], new_names: Mapping[str, str]) -> list[str]:
    """The arguments with deprecated names replaced, up to a `--`."""
    end = args.index("--") if "--" in args else len(args)
    return [_with_new_name(arg, new_names) for arg in args[:end]] + args[end:]


def _with_new_name(arg: str, new_names: Mapping[str, str]) -> str:
    name, equals, value = arg.partition("=")
    if name not in new_names:
        return arg
    typer.echo(f"{name} is deprecated: use {new_names[name]}", err=True)
    return f"{new_names[name]}{equals}{value}"
