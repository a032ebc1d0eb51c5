"""What commands share: progress on standard error, and errors told without a traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar that is told how many are done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def told() -> Iterator[None]:
    """Errors of ours are told in a line, and the command ends with exit code 1."""
    from forerun.errors import ForerunError

    try:
        yield
    except ForerunError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
