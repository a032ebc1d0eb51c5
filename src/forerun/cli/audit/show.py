"""How a report is shown: a table, JSON or a page; and the exit code that says what was found."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from forerun.audit.report import Finding, Report
    from forerun.servers.endpoint import Endpoint

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page with plots, in one file.")]
Url = Annotated[str, typer.Option(help="The server under test, with or without /v1.")]
Model = Annotated[
    str | None, typer.Option("--model", help="The model to ask for; the first the server lists.")
]
ApiKey = Annotated[str, typer.Option("--api-key", envvar="OPENAI_API_KEY", help="The key of the servers.")]
DialectName = Annotated[
    str | None,
    typer.Option(
        "--dialect",
        help="vllm, sglang, llama-server, llama-cpp-python or tensorrt-llm; found out if left out.",
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds after which an answer is taken for lost.")]


@contextmanager
def servers(
    model: str | None, api_key: str, dialect: str | None, timeout: float
) -> Iterator[Callable[[str], Endpoint]]:
    """Servers by their URLs, let go of at the end."""
    from forerun.errors import ConfigurationError, did_you_mean
    from forerun.servers.dialects import DIALECTS
    from forerun.servers.endpoint import Endpoint

    with ExitStack() as stack, judging():

        def connect(url: str) -> Endpoint:
            if dialect is not None and dialect not in DIALECTS:
                raise ConfigurationError(
                    f"no dialect is called {dialect!r}; {did_you_mean(dialect, DIALECTS)}"
                )
            spoken = None if dialect is None else DIALECTS[dialect]
            server = Endpoint(url, model=model, api_key=api_key, dialect=spoken, timeout=timeout)
            stack.callback(server.close)
            return server

        yield connect


@contextmanager
def judging() -> Iterator[None]:
    """What keeps an audit from its end is told in a line; exit code 2, since nothing was found."""
    from forerun.errors import ForerunError

    try:
        yield
    except (typer.Exit, KeyboardInterrupt):
        raise
    except (ForerunError, OSError) as error:
        typer.echo(f"no verdict: {error}", err=True)
        raise typer.Exit(2) from error
    except Exception as error:  # a fault of ours must not look like a finding
        typer.echo(f"no verdict:\n{traceback.format_exc()}", err=True)
        raise typer.Exit(2) from error


def is_url(text: str) -> bool:
    """Whether this is a server and not the directory of a model."""
    return text.startswith(("http://", "https://"))


def finish(report: Report, *, as_json: bool, html: Path | None = None) -> NoReturn:
    """Show a report and end with its exit code."""
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        show(report)
    if html is not None:
        from forerun.audit.page import write_page

        write_page(report, html)
    raise typer.Exit(report.verdict.exit_code)


def show(report: Report) -> None:
    """The table, the notes and the verdict, for people."""
    from rich.console import Console

    from forerun.audit.words import summary

    console = Console()
    console.print(_table(report))
    for line in summary(report):
        console.print(f"  {line}", highlight=False, markup=False)
    style = _style(report.verdict)
    console.print(
        f"{report.verdict.value}: {report.reason}", style=f"bold {style}", highlight=False, markup=False
    )


def _table(report: Report) -> Table:
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

    from forerun.audit.words import cell

    if key != "finding":
        return escape(cell(value))
    good = value in {"same", "near-tie", "equal", "bounded", "agrees", "caught"}
    colour = "green" if good else "bold red" if value == "difference" or "NOT" in value else "yellow"
    return f"[{colour}]{value}[/]"


def _style(finding: Finding) -> str:
    return {0: "green", 1: "red", 2: "yellow"}[finding.exit_code]
