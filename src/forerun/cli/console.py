"""What commands share: progress on standard error, and errors told without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import typer


class Watch(Protocol):
    """Is told how many are done and, where that changes, what is being done."""

    def __call__(self, done: int, what: str | None = None, /) -> None:
        """Show it."""


@contextmanager
def counting(what: str, total: int) -> Iterator[Watch]:
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
def told() -> Iterator[None]:
    """Errors of ours are told in a line, and the command ends with exit code 1."""
    from forerun.errors import ForerunError

    try:
        yield
    except ForerunError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
