"""`forerun bench compare`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.console import report_errors

if TYPE_CHECKING:
    from forerun.bench.client_results import ClientResult
    from forerun.bench.stock_load_ratios import LoadComparison


def compare(
    stock: Annotated[
        list[Path],
        typer.Argument(help="Result files of the first server, the baseline.", metavar="STOCK"),
    ],
    other: Annotated[
        list[Path],
        typer.Option("--with", help="Result file of the other server; may be repeated.", metavar="OTHER"),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Compare two servers by result files of vLLM's client, `vllm bench serve --save-result`.

    Files with the same load (concurrency and request rate) are compared; several of a load are paired in
    their order, and two or more pairs give a confidence interval. `--save-detailed` lets outputs be compared.

    Example: `forerun bench compare stock.json --with forerun.json`
    """
    from forerun.bench.client_results import read_client_results

    with report_errors():
        found = _by_load(
            *([each for file in some for each in read_client_results(file)] for some in (stock, other))
        )
        if as_json:
            typer.echo(
                json.dumps([{"load": load, **each.to_row()} for load, each in found.items()], indent=1)
            )
        else:
            _print_table(found)


def _by_load(stock: Sequence[ClientResult], other: Sequence[ClientResult]) -> dict[str, LoadComparison]:
    """A comparison for each load; raises unless both servers have as many complete results of each."""
    from forerun.bench.stock_load_ratios import compare_results
    from forerun.errors import ConfigurationError

    if failed := sum(each.num_failed for each in [*stock, *other]):
        raise ConfigurationError(f"{failed} requests failed in these results: measure again")
    found = {}
    for load in dict.fromkeys(each.load for each in [*stock, *other]):
        one, two = ([each for each in some if each.load == load] for some in (stock, other))
        if len(one) != len(two):
            raise ConfigurationError(
                f"got {len(one)} results of the first server and {len(two)} of the other with {load},"
                " expected as many of each"
            )
        found[load] = compare_results(list(zip(one, two, strict=True)))
    return found


def _print_table(found: Mapping[str, LoadComparison]) -> None:
    """One table with a row per load and metric, to fit a terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from forerun.bench.stock_load_table import metric_rows

    table = Table(box=box.SIMPLE_HEAD)
    for number, title in enumerate(("load", "", "first", "other", "ratio")):
        table.add_column(title, justify="right" if number > 1 else "left")
    for load, each in found.items():
        for number, row in enumerate(metric_rows(each)):
            table.add_row("" if number else load, *row)
        table.add_section()
    Console().print(table)
