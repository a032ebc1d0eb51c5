"""`forerun audit`: is speculation honest?"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from forerun.audit.exact.registry import Row

audit = typer.Typer(help="Prove that speculation changes nothing.", no_args_is_help=True)


@audit.callback()
def main() -> None:
    """Prove that speculation changes nothing."""


@audit.command()
def exact(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
) -> None:
    """Prove every verifier by enumeration in exact arithmetic, and catch every sabotaged one.

    Exit code 0: everything held. 1: something did not.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from forerun.audit.exact.run import NUM_ROWS, run
    from forerun.audit.exact.run import as_json as row_as_json

    began = time.perf_counter()
    rows: list[Row] = []
    columns = (
        TextColumn("enumerating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=NUM_ROWS)
        for row in run():
            rows.append(row)
            progress.update(task, advance=1, description=row.name)
    seconds = time.perf_counter() - began
    held = all(row.held for row in rows)
    if as_json:
        report = {
            "verdict": "exact" if held else "broken",
            "seconds": round(seconds, 2),
            "rows": [row_as_json(row) for row in rows],
        }
        typer.echo(json.dumps(report, indent=2))
    else:
        console = Console()
        console.print(_table(rows))
        console.print(_summary(rows, seconds), style="bold green" if held else "bold red")
    raise typer.Exit(0 if held else 1)


def _table(rows: list[Row]) -> Table:
    """The rows for people, grouped by what they claim."""
    from rich.table import Table

    from forerun.audit.exact.registry import Kind

    groups = {
        Kind.LOSSLESS: "says what the target says",
        Kind.LOSSY: "stays within its bound",
        Kind.KERNEL: "fast code, bit for bit",
        Kind.MUTANT: "sabotaged, must be caught",
    }
    table = Table(title="Enumerated in rational numbers", title_justify="left")
    table.add_column("")
    table.add_column("verdict")
    for name in ("cases", "outcomes", "distance"):
        table.add_column(name, justify="right")
    for kind, claim in groups.items():
        table.add_section()
        table.add_row(f"[bold]{claim}[/]")
        for row in rows:
            if row.kind is kind:
                verdict = f"[green]{kind.value}[/]" if row.held else f"[red]NOT {kind.value}[/]"
                distance = "" if row.distance is None else f"{float(row.distance):.4g}"
                table.add_row(row.name, verdict, str(row.num_cases), f"{row.num_outcomes:,}", distance)
    return table


def _summary(rows: list[Row], seconds: float) -> str:
    """One line that says it all."""
    broken = [row.name for row in rows if not row.held]
    outcomes = sum(row.num_outcomes for row in rows)
    if broken:
        return f"NOT exact: {', '.join(broken)}"
    return f"All {len(rows)} claims hold, over {outcomes:,} outcomes in {seconds:.0f} s."
