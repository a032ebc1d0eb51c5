"""The output of an audit: table, JSON, page and exit code."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from forerun.cli.console import check_writable

if TYPE_CHECKING:
    from rich.table import Table

    from forerun.audit.report import AuditReport, AuditVerdict


@contextmanager
def no_verdict_on_error() -> Iterator[None]:
    """End an audit that cannot finish with one line and exit code 2: no verdict."""
    from forerun.audit.report import INTERRUPTED
    from forerun.errors import ForerunError

    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt as error:
        typer.echo(f"no verdict: {INTERRUPTED}", err=True)
        raise typer.Exit(2) from error
    except (ForerunError, OSError) as error:
        typer.echo(f"no verdict: {error}", err=True)
        raise typer.Exit(2) from error
    except Exception as error:  # a bug of forerun must not look like a difference
        typer.echo(f"no verdict:\n{traceback.format_exc()}", err=True)
        raise typer.Exit(2) from error


def check_page(page: Path | None, *, with_figures: bool = True) -> None:
    """Raise, before any work, if the page cannot be written or its figures cannot be drawn."""
    if page is not None:
        check_writable(page)
        if with_figures:
            from forerun.rendering.plots import require_matplotlib

            require_matplotlib()


def finish(report: AuditReport, *, as_json: bool, page: Path | None = None) -> NoReturn:
    """Print the report, write its page and exit with its exit code."""
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        print_report(report)
    if page is not None:
        from forerun.audit.report_page import write_page

        write_page(report, page)
    raise typer.Exit(report.verdict.exit_code)


def print_report(report: AuditReport) -> None:
    """Print the table, the notes and the verdict."""
    from rich.console import Console

    from forerun.audit.report_format import summary_lines

    console = Console()
    console.print(_table(report))
    for line in summary_lines(report):
        console.print(f"  {line}", highlight=False, markup=False)
    style = _style(report.verdict)
    console.print(
        f"{report.verdict.value}: {report.reason}", style=f"bold {style}", highlight=False, markup=False
    )


def _table(report: AuditReport) -> Table:
    from rich.table import Table

    table = Table(title=f"forerun audit {report.audit}", title_justify="left")
    for key, title in report.columns.items():
        numeric = any(isinstance(row.get(key), int | float) for row in report.rows)
        table.add_column(title, justify="right" if numeric else "left")
    for row in report.rows:
        table.add_row(*(_cell(key, row.get(key)) for key in report.columns))
    return table


def _cell(key: str, value: Any) -> str:
    from rich.markup import escape

    from forerun.audit.report_format import format_cell

    if key != "finding":
        return escape(format_cell(value))
    good = value in {"same", "near-tie", "equal", "bounded", "agrees", "caught", "pass"}
    bad = value in {"difference", "fail"} or "NOT" in value
    colour = "green" if good else "bold red" if bad else "yellow"
    return f"[{colour}]{value}[/]"


def _style(finding: AuditVerdict) -> str:
    return {0: "green", 1: "red", 2: "yellow"}[finding.exit_code]
