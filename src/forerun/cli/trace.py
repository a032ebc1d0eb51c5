"""`forerun trace`: the steps of a run as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.console import check_writable, report_errors


def trace(
    file: Annotated[Path, typer.Argument(help="A trace written by `forerun generate --trace FILE`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("trace.html"),
) -> None:
    """Write a trace as one self-contained page: the text in colours, every step and its draft tree, and with
    a draft model the forward passes of both models on a time axis.
    """
    from forerun.engines.local.trace_page import write_page
    from forerun.engines.local.trace_reader import read_calls, read_trace

    with report_errors():
        check_writable(output)
        traces = read_trace(file)
        write_page(traces, output, read_calls(file))
    typer.echo(f"{output}: {sum(len(each.steps) for each in traces)} steps of {len(traces)} requests")
