"""What commands share: progress on standard error, and errors told without a traceback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from pathlib import Path

_FIGURE_FORMATS: Final = (".png", ".svg", ".pdf")


class ProgressCallback(Protocol):
    """Is told how many are done and, where that changes, what is being done."""

    def __call__(self, done: int, what: str | None = None, /) -> None:
        """Show it."""


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[ProgressCallback]:
    """A bar that is told how many are done, and says how long the rest will take."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    words = TextColumn("{task.description}", markup=False)
    columns = (words, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)

        def watch(done: int, what: str | None = None, /) -> None:
            progress.update(task, completed=done, description=what)

        yield watch


@contextmanager
def report_errors() -> Iterator[None]:
    """Errors of ours are told in a line, and the command ends with exit code 1."""
    from forerun.errors import ForerunError

    try:
        yield
    except ForerunError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error


def check_writable(path: Path) -> None:
    """Raise `OutputNotWritable` if `path` cannot be written.

    Called before any work, so that a wrong path costs no time. An existing file keeps its content, and a
    file that does not exist is not left behind.
    """
    from forerun.errors import OutputNotWritable

    try:
        problem = _why_not_writable(path)
    except OSError as error:
        problem = f"{(error.strerror or str(error)).lower()}; give another path"
    if problem is not None:
        raise OutputNotWritable(f"cannot write {path}: {problem}")


def _why_not_writable(path: Path) -> str | None:
    """The reason and the remedy, if `path` cannot be opened for writing. Pipes and devices are not opened."""
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
    from forerun.plots import pyplot

    check_writable(path)
    if path.suffix.lower() not in _FIGURE_FORMATS:
        known = f"{', '.join(_FIGURE_FORMATS[:-1])} or {_FIGURE_FORMATS[-1]}"
        raise OutputNotWritable(
            f"cannot write {path}: unknown figure format {path.suffix!r}; end the name in {known}"
        )
    pyplot()


def renamed_options(new_names: Mapping[str, str]) -> type[TyperCommand]:
    """A command class that still accepts old names of options, given as {old: new} with their dashes.

    An old name does everything its new name does and prints a deprecation notice on standard error. It is
    absent from `--help`, from shell completion and from the generated reference. Usage::

        app.command(cls=renamed_options({"--at-once": "--concurrency"}))(function)
    """

    class RenamedOptions(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, _with_new_names(args, new_names))

    return RenamedOptions


def _with_new_names(args: list[str], new_names: Mapping[str, str]) -> list[str]:
    """The arguments with old names replaced, up to a `--`, behind which there are no options."""
    end = args.index("--") if "--" in args else len(args)
    return [_with_new_name(arg, new_names) for arg in args[:end]] + args[end:]


def _with_new_name(arg: str, new_names: Mapping[str, str]) -> str:
    name, equals, value = arg.partition("=")
    if name not in new_names:
        return arg
    typer.echo(f"{name} is deprecated: use {new_names[name]}", err=True)
    return f"{new_names[name]}{equals}{value}"
