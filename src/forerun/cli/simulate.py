"""`forerun simulate`: speculation on hardware that is not at hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from forerun.cli.console import check_figure, progress_bar, report_errors

if TYPE_CHECKING:
    from forerun.simulate.scenario import Scenario, ScenarioResult


_REPLICAS_NEEDED: Final = "replicas needed"


def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="A YAML file, or a built-in one: agents, chat, fleet, laptop, run-ahead.", metavar="SCENARIO"
        ),
    ] = None,
    grid: Annotated[
        bool,
        typer.Option(
            "--grid", help="Compare the controller with every fixed draft length, over costs and texts."
        ),
    ] = False,
    wrong_estimates: Annotated[
        bool,
        typer.Option(
            "--wrong-estimates",
            help="Compare the controller with non-speculative decoding where its costs and acceptance"
            " estimates are wrong.",
        ),
    ] = False,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, help="Simulate N replicas, with their share of the requests."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the results to this file (.png, .svg or .pdf).",
            rich_help_panel="Output",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel="Output")
    ] = False,
) -> None:
    """Simulate a server, or a fleet of replicas, with the controller of the real engines.

    Requests arrive, a continuous batch serves them on hardware described by its data sheet, and draft tokens
    are accepted at random. Non-speculative decoding and a fixed draft length serve the same requests for
    comparison.

    If a scenario sets `token_seconds`, the column "replicas needed" gives the fewest replicas that serve its
    peak load with a 99th percentile of the ITL below `token_seconds`.

    Example: forerun simulate chat --replicas 2 --plot chat.png
    """
    if grid + wrong_estimates + (scenario is not None) != 1:
        raise typer.BadParameter("give one of: a scenario, --grid, --wrong-estimates")
    if wrong_estimates and plot is not None:
        raise typer.BadParameter("--wrong-estimates has no plot")
    with report_errors():
        if plot is not None:
            check_figure(plot)
        if wrong_estimates:
            _wrong_estimates(as_json)
        elif scenario is None:
            _grid(plot, as_json)
        else:
            _scenario(scenario, replicas, plot, as_json)


def _grid(plot: Path | None, as_json: bool) -> None:
    from forerun.simulate.grid import grid, run_grid

    every = grid()
    cells = _collect(run_grid(every), len(every))
    if plot is not None:
        from forerun.rendering.plots import write_figure
        from forerun.simulate.figures import draw_grid

        write_figure(partial(draw_grid, cells), plot)
    if as_json:
        typer.echo(json.dumps(cells, indent=1))
    else:
        _print_grid(cells)


def _collect(cells: Iterator[dict[str, Any]], num: int) -> list[dict[str, Any]]:
    """The results of all cells, with a progress bar."""
    results: list[dict[str, Any]] = []
    with progress_bar("simulating", num) as progress:
        for cell in cells:
            results.append(cell)
            progress(len(results))
    return results


def _print_grid(cells: list[dict[str, Any]]) -> None:
    """The worst of each kind of text."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for title in (
        "texts",
        "cells",
        "over the baseline, worst",
        "median",
        "over the best fixed length, worst",
        "median",
    ):
        table.add_column(title, justify="left" if title == "texts" else "right")
    for text in dict.fromkeys(cell["text"] for cell in cells):
        mine = [cell for cell in cells if cell["text"] == text]
        numbers: list[str] = []
        for key in ("speedup", "speedup_over_best_fixed"):
            values = sorted(cell[key] for cell in mine)
            numbers += [f"{values[0]:.3f}", f"{values[len(values) // 2]:.3f}"]
        table.add_row(text, str(len(mine)), *numbers)
    Console().print(table)


def _wrong_estimates(as_json: bool) -> None:
    from forerun.simulate.wrong_estimates import cells_with_errors, compare_with_baseline

    every = cells_with_errors()
    results = _collect(compare_with_baseline(every), len(every))
    if as_json:
        typer.echo(json.dumps(results, indent=1))
    else:
        _print_wrong_estimates(results)


def _print_wrong_estimates(results: list[dict[str, Any]]) -> None:
    """The worst speedup for each error."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from forerun.simulate.wrong_estimates import summarise_errors

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("estimates, relative to the truth")
    for title in ("cells", "over the baseline, worst", "median"):
        table.add_column(title, justify="right")
    for each in summarise_errors(results):
        table.add_row(each["error"], str(each["cells"]), f"{each['worst']:.3f}", f"{each['median']:.3f}")
    Console().print(table)


def _scenario(given: str, replicas: int | None, plot: Path | None, as_json: bool) -> None:
    from forerun.simulate.scenario import Scenario, run_scenario

    scenario = Scenario.read(given)
    if replicas is not None:
        scenario = scenario.scaled(replicas)
    results: list[ScenarioResult] = []
    with progress_bar("simulating", len(scenario.policies)) as progress:
        for policy in scenario.policies:
            results.append(run_scenario(scenario, policy))
            progress(len(results))
    if plot is not None:
        from forerun.rendering.plots import write_figure
        from forerun.simulate.figures import draw_scenario

        write_figure(partial(draw_scenario, scenario, results), plot)
    if as_json:
        facts = {
            "scenario": json.loads(scenario.model_dump_json()),
            "results": [each.values() for each in results],
        }
        typer.echo(json.dumps(facts, indent=1))
    else:
        _print(scenario, results)


def _print(scenario: Scenario, results: list[ScenarioResult]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"[bold]{scenario.name}[/]: {scenario.model} on {scenario.replicas} x {_devices(scenario)}")
    if scenario.about:
        console.print(scenario.about, style="dim")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    if any(each.replicas_needed for each in results):
        table.add_column(_REPLICAS_NEEDED.replace(" ", "\n"), justify="right", style="bold", no_wrap=True)
    for title in ("tokens/s", "tokens\n/step", "draft\n/step", "ITL ms", "TTFT s", "busy"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in results:
        out = each.outcome
        name = f"fixed at {scenario.fixed_draft}" if each.policy == "fixed" else each.policy
        table.add_row(
            name,
            *([str(each.replicas_needed)] if each.replicas_needed else []),
            f"{out.tokens_per_second:,.0f}",
            f"{out.tokens_per_step:.2f}",
            f"{out.draft_tokens_per_step:.1f}",
            "{:.0f} to {:.0f}".format(*(1e3 * value for value in out.itl)),
            "{:.1f} to {:.1f}".format(*out.ttft),
            f"{out.busy:.0%}",
        )
    console.print(table)
    console.print(
        "per step: tokens emitted and draft tokens; ITL and TTFT: p50 to p99 over requests", style="dim"
    )
    if scenario.token_seconds is not None and any(each.replicas_needed for each in results):
        console.print(
            f"{_REPLICAS_NEEDED}: the fewest that serve the peak load with an ITL p99 of at most"
            f" {1e3 * scenario.token_seconds:.0f} ms (the rate that one replica sustains, by bisection)",
            style="dim",
        )


def _devices(scenario: Scenario) -> str:
    many = scenario.devices_per_replica > 1
    return f"{scenario.devices_per_replica} {scenario.device}" if many else scenario.device
