"""`forerun selftest`: compare `forerun serve` with stock vLLM on this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.console import check_writable
from forerun.servers.processes import STARTUP_TIMEOUT

if TYPE_CHECKING:
    from rich.table import Table

    from forerun.selftest.phases import PhaseClock
    from forerun.selftest.run import SelftestRun


def selftest(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="The target model: a directory, or a name on the hub.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the report as Markdown, to be pasted into an issue.")
    ] = Path("selftest-report.md"),
    speculation: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Speculation settings as a JSON file, as for `forerun serve`."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few short requests: compares outputs, times nothing precisely.")
    ] = False,
    time_limit: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Run stock vLLM a second time, which shows the drift of the machine, only if that fits.",
        ),
    ] = 300.0,
    startup_timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Time limit for each server to start.")
    ] = STARTUP_TIMEOUT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check forerun on this machine: identical output, no host synchronization, throughput against stock.

    Runs stock vLLM in its default mode and `forerun serve`, one after the other, first in float32 (if the
    model fits), then in the precision in which it is served: about five minutes on a GPU. Arguments behind
    `--` are passed to every server; those that configure speculation only to `forerun serve`.

    Exit code 0: outputs are identical, up to near-ties in lower precision, or undecided. 1: outputs differ.
    2: a server does not start, or stops.

    Example: `forerun selftest Qwen/Qwen3-0.6B -- --max-model-len 4096`
    """
    from forerun.selftest.report import as_json as report_values
    from forerun.selftest.report import markdown, selftest_facts

    with _exit_on_errors():
        check_writable(output)
        _check_launch(model, speculation, context.args)
        run, gpus = _run(model, context.args, speculation, quick, time_limit, startup_timeout)
    facts = selftest_facts(model, context.args, gpus)
    output.write_text(markdown(run, facts), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(report_values(run, facts), indent=1))
    else:
        _print(run, facts)
    typer.echo(f"report: {output}, to be pasted into an issue", err=True)
    raise typer.Exit(run.exit_code)


def _run(
    model: str,
    flags: list[str],
    speculation: Path | None,
    quick: bool,
    time_limit: float,
    startup_timeout: float,
) -> tuple[SelftestRun, list[Any]]:
    """Run the self-test; returns it with the GPUs. The logs of servers are kept if it fails."""
    from forerun.engines.vllm.precision import served_dtype
    from forerun.selftest.gpu import find_gpus
    from forerun.selftest.live_server import VllmLauncher
    from forerun.selftest.phases import PhaseClock
    from forerun.selftest.plan import full_plan, quick_plan
    from forerun.selftest.run import SelftestRun, planned_phases

    dtype, gpus = served_dtype(model, flags), find_gpus()
    folder = Path(mkdtemp(prefix="forerun-selftest-"))
    exit_code = 0
    try:
        with _progress() as announce:
            run = SelftestRun(
                quick_plan() if quick else full_plan(),
                VllmLauncher(model, tuple(flags), folder, startup_timeout, speculation),
                PhaseClock(planned_phases(dtype), announce),
                dtype,
                has_cuda=bool(gpus),
                time_limit=None if quick else time_limit,
            )
            run.run()
        exit_code = run.exit_code
    finally:
        if exit_code:
            typer.echo(f"logs of the servers: {folder}", err=True)
        else:
            shutil.rmtree(folder)
    return run, gpus


@contextmanager
def _exit_on_errors() -> Iterator[None]:
    """End the command with exit code 2 and a remedy after an error, and with 130 after Ctrl-C."""
    from forerun.errors import ForerunError
    from forerun.selftest.remedies import remedy_for

    try:
        yield
    except ForerunError as error:
        typer.echo(f"{error}\nremedy: {remedy_for(str(error))}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        typer.echo("interrupted: the servers were stopped, and no report was written", err=True)
        raise typer.Exit(130) from error


def _check_launch(model: str, speculation: Path | None, flags: list[str]) -> None:
    """Raise, before any server starts, for a model or flags that `forerun serve` would refuse."""
    from importlib.util import find_spec

    from forerun.config import SpeculationConfig
    from forerun.drafters.registry import check_known
    from forerun.engines.vllm.launch import serve_flags
    from forerun.engines.vllm.preflight import check_launch
    from forerun.engines.vllm.runner_choice import choose_runner
    from forerun.errors import ConfigurationError, MissingExtra

    if model.startswith("-"):
        raise ConfigurationError(f"the model comes first: forerun selftest MODEL -- {model} ...")
    if find_spec("vllm") is None:
        raise MissingExtra("vLLM", "vllm")
    config = SpeculationConfig.parse(speculation) if speculation else SpeculationConfig()
    check_known(config)
    serve_flags(model, config, flags, choose_runner(flags).runner)
    check_launch(model, config, [*flags, "--host", "127.0.0.1", "--port", "0"])


@contextmanager
def _progress() -> Iterator[Callable[[PhaseClock], None]]:
    """Prints a line for each phase on standard error; on a terminal, a spinner counts the time left."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    shown: list[PhaseClock] = []

    class TimeLeft:
        def __rich__(self) -> Text:
            return Text(_time_left(shown[0]) if shown else "")

    with console.status(TimeLeft()):

        def announce(clock: PhaseClock) -> None:
            shown[:] = [clock]
            left = "" if console.is_terminal else f" ({_time_left(clock)})"
            number, name = clock.current + 1, clock.phases[clock.current].name
            console.print(f"[{number}/{len(clock.phases)}] {name}{left}", markup=False, soft_wrap=True)

        yield announce


def _time_left(clock: PhaseClock) -> str:
    seconds = round(clock.remaining)
    return f"about {seconds // 60}:{seconds % 60:02d} left" if seconds > 0 else "finishing"


def _print(run: SelftestRun, facts: dict[str, Any]) -> None:
    """Print the checks, the throughput and the environment."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from forerun.selftest.remedies import remedy_for
    from forerun.selftest.report import environment_rows, headline

    console = Console(highlight=False)
    console.print(_checks_table(run))
    if run.cells:
        console.print(_load_table(run))
    environment = Table.grid(padding=(0, 2))
    for name, value in environment_rows(run, facts):
        environment.add_row(f"  {name}", escape(value.strip("`")))
    for note in run.notes:
        environment.add_row("  note", escape(note))
    console.print(environment)
    if run.failure:
        console.print(f"\n{run.failure}\nremedy: {remedy_for(run.failure)}", markup=False, soft_wrap=True)
    style = {0: "bold green", 1: "bold red", 2: "bold yellow"}[run.exit_code]
    console.print(f"\n{headline(run)}", style=style)


def _checks_table(run: SelftestRun) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from forerun.selftest.report import check_cells

    colours = {"pass": "green", "fail": "bold red", "undecided": "yellow", "not applicable": "dim"}
    table = Table(box=box.SIMPLE_HEAD, title="forerun selftest", title_justify="left")
    for title in ("check", "verdict", "finding"):
        table.add_column(title, no_wrap=title == "verdict")
    for name, verdict, finding in map(check_cells, run.checks):
        table.add_row(name, f"[{colours[verdict]}]{verdict}[/]", escape(finding))
    return table


def _load_table(run: SelftestRun) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from forerun.selftest.report import load_cells

    has_drift = any(cell.baseline_drift is not None for cell in run.cells)
    table = Table(
        box=box.SIMPLE_HEAD, title="throughput, tokens/s", title_justify="left", padding=(0, 1, 0, 0)
    )
    titles = ("text x concurrency", "stock", "forerun", "ratio", "tokens per step", "accepted", "identical")
    for title in (*titles, *(["stock again"] if has_drift else [])):
        table.add_column(title, justify="left" if title == titles[0] else "right")
    for text, concurrency, *numbers in map(load_cells, run.cells):
        table.add_row(f"{text} x {concurrency}", *map(escape, numbers if has_drift else numbers[:-1]))
    return table
