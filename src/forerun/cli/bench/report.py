"""`forerun bench report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.bench.show import print_results
from forerun.cli.console import check_writable, report_errors


def report(
    records: Annotated[list[Path], typer.Argument(help="Results files of `forerun bench run`.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a self-contained HTML page.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Write the figures as PNG to this directory.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Make tables, figures and a page from results files alone.

    Example: `forerun bench report bench.jsonl --output report.html`
    """
    from forerun.bench.record import BenchRecord
    from forerun.bench.report_page import write_page, write_pngs
    from forerun.bench.report_tables import markdown, vllm_caption
    from forerun.bench.summary import summarise

    with report_errors():
        if output is not None:
            check_writable(output)
        if figures is not None:
            _check_folder(figures)
        record = BenchRecord.merged([BenchRecord.read(each) for each in records])
        if output is not None:
            write_page(record, output)
        if figures is not None:
            write_pngs(record, figures)
        if as_markdown:
            typer.echo(markdown(summarise(record), vllm_caption(record, quote="`")))
        elif as_json or output is None:
            print_results(record, as_json=as_json)
        if output is not None:
            typer.echo(f"wrote {output}", err=True)


def _check_folder(folder: Path) -> None:
    """Raise unless files can be written to a folder, which is created if it is missing."""
    from forerun.errors import OutputNotWritable

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputNotWritable(f"cannot create the directory {folder}: {error.strerror}") from error
    check_writable(folder / "bench-speed.png")
