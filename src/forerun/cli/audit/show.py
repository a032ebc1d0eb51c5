"""Options shared by all audits, and the output of a report: table, JSON, page and exit code."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from forerun.cli.console import check_writable

if TYPE_CHECKING:
    from rich.table import Table

    from forerun.audit.report import AuditReport, AuditVerdict
    from forerun.servers.endpoint import Endpoint

_HOST_AND_PORT: Final = re.compile(r"(localhost|[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+)(/.*)?")

SERVERS: Final = "Servers"
REQUESTS: Final = "Requests"
TEST: Final = "Test"
OUTPUT: Final = "Output"

RENAMED: Final = {
    "--html": "--output",
    "--most": "--num-prompts",
    "--at-once": "--concurrency",
    "--tokens": "--max-tokens",
    "--seeds": "--num-seeds",
    "--samples": "--num-samples",
    "--most-samples": "--max-samples",
}
"""Deprecated option names, with their new names."""

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of a table.", rich_help_panel=OUTPUT)
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the report with its figures to this file, one HTML page.",
        rich_help_panel=OUTPUT,
    ),
]
Candidate = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="The server under test: a URL, with or without /v1, or host:port.",
        rich_help_panel=SERVERS,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="The name of the model in requests.",
        show_default="the first that the server lists",
        rich_help_panel=SERVERS,
    ),
]
ApiKey = Annotated[
    str,
    typer.Option(
        "--api-key", envvar="OPENAI_API_KEY", help="The API key of the servers.", rich_help_panel=SERVERS
    ),
]
DialectName = Annotated[
    str | None,
    typer.Option(
        "--dialect",
        help="vllm, sglang, llama-server, llama-cpp-python or tensorrt-llm.",
        show_default="detected",
        rich_help_panel=SERVERS,
    ),
]
Timeout = Annotated[
    float, typer.Option(help="Seconds after which a request is sent again.", rich_help_panel=SERVERS)
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="One prompt per line, as text or as JSON with `prompt` or `turns`.",
        show_default="four built-in prompts",
        rich_help_panel=REQUESTS,
    ),
]
NumPrompts = Annotated[
    int | None,
    typer.Option(min=1, help="Use the first N prompts only.", show_default="all", rich_help_panel=REQUESTS),
]

ErrorRate = Annotated[
    float,
    typer.Option(
        min=1e-9,
        max=0.5,
        help="Probability that a faultless server is reported as different.",
        rich_help_panel=TEST,
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        min=1e-6,
        max=0.5,
        help="Total variation distance allowed for rounding.",
        show_default="measured",
        rich_help_panel=TEST,
    ),
]


@contextmanager
def server_connections(
    model: str | None, api_key: str, dialect: str | None, timeout: float
) -> Iterator[Callable[[str], Endpoint]]:
    """Yields a function that connects to a server; connections are closed on exit."""
    from forerun.errors import ConfigurationError, did_you_mean
    from forerun.servers.dialects import DIALECTS
    from forerun.servers.endpoint import Endpoint

    with ExitStack() as stack, no_verdict_on_error():

        def connect(url: str) -> Endpoint:
            if dialect is not None and dialect not in DIALECTS:
                raise ConfigurationError(f"unknown dialect {dialect!r}; {did_you_mean(dialect, DIALECTS)}")
            known = None if dialect is None else DIALECTS[dialect]
            server = Endpoint(url, model=model, api_key=api_key, dialect=known, timeout=timeout)
            stack.callback(server.close)
            return server

        yield connect


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
            from forerun.plots import pyplot

            pyplot()


def is_url(text: str) -> bool:
    """Whether this names a server rather than the directory of a model."""
    if Path(text).is_dir():
        return False
    return text.startswith(("http://", "https://")) or _HOST_AND_PORT.fullmatch(text) is not None


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
    good = value in {"same", "near-tie", "equal", "bounded", "agrees", "caught"}
    colour = "green" if good else "bold red" if value == "difference" or "NOT" in value else "yellow"
    return f"[{colour}]{value}[/]"


def _style(finding: AuditVerdict) -> str:
    return {0: "green", 1: "red", 2: "yellow"}[finding.exit_code]
