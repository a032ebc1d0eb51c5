"""Results of a benchmark on the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from forerun.bench.record import BenchRecord
    from forerun.bench.summary import SystemResult


def print_results(record: BenchRecord, *, as_json: bool) -> None:
    """Print tables, or JSON."""
    from forerun.bench.findings import findings, losses
    from forerun.bench.report_tables import as_values, vllm_caption
    from forerun.bench.summary import summarise

    if as_json:
        typer.echo(json.dumps(as_values(record), indent=1))
        return
    from rich.console import Console

    results = summarise(record)
    for table in _tables(results):
        Console().print(table)
    typer.echo(vllm_caption(record))
    for each in [*findings(results), *losses(results)]:
        typer.echo(f"- {each}")


def _tables(results: Sequence[SystemResult]) -> Iterator[Table]:
    """One table per setting, over all categories, to fit a terminal."""
    from rich import box
    from rich.table import Table

    from forerun.bench.report_tables import overall_tables

    for title, (head, *rows) in overall_tables(results).items():
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for number, each in enumerate(head):
            last = number == len(head) - 1
            table.add_column(each, justify="left" if last or not number else "right", no_wrap=not last)
        for row in rows:
            table.add_row(*row)
        yield table
