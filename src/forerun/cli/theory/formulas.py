"""`forerun theory` without a subcommand: speedup from acceptance rate and draft cost alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from forerun.cli.console import check_figure, report_errors

OUTPUT: Final = "Output"

ALPHAS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)

TABLE_1 = ((0.6, 2), (0.7, 3), (0.8, 2), (0.8, 5), (0.9, 2), (0.9, 10))
TABLE_4 = (
    ("EnDe", "T5-small", 0, 7, 0.75, 0.02, 3.2),
    ("EnDe", "T5-base", 0, 7, 0.80, 0.04, 3.3),
    ("EnDe", "T5-large", 0, 7, 0.82, 0.11, 2.5),
    ("EnDe", "T5-small", 1, 7, 0.62, 0.02, 2.3),
    ("EnDe", "T5-base", 1, 5, 0.68, 0.04, 2.4),
    ("EnDe", "T5-large", 1, 3, 0.71, 0.11, 2.0),
    ("CNNDM", "T5-small", 0, 5, 0.65, 0.02, 2.4),
    ("CNNDM", "T5-base", 0, 5, 0.73, 0.04, 2.6),
    ("CNNDM", "T5-large", 0, 3, 0.74, 0.11, 2.0),
    ("CNNDM", "T5-small", 1, 5, 0.53, 0.02, 1.9),
    ("CNNDM", "T5-base", 1, 3, 0.55, 0.04, 1.8),
    ("CNNDM", "T5-large", 1, 3, 0.56, 0.11, 1.6),
)
"""The settings of the paper's tables; of table 4 also the expected gain it prints."""


BEYOND: Final = 3
"""Draft lengths beyond the best that the table of one acceptance rate shows."""

LONGEST: Final = 32


def formulas(
    context: typer.Context,
    alpha: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Acceptance rate of draft tokens.",
            show_default="several rates from 0.3 to 0.95",
        ),
    ] = None,
    cost: Annotated[
        float,
        typer.Option(min=0, help="Cost of one draft token, as a share of a forward pass of the target."),
    ] = 0.05,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw figures 2 to 4 of the paper to this file (.png, .svg or .pdf).",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object instead of a table.", rich_help_panel=OUTPUT),
    ] = False,
) -> None:
    """Compute the speedup that speculation can reach, by Leviathan et al. 2023.

    With --alpha: tokens per step, speedup and operations for every draft length from 0 to three beyond the
    best (32 at most); the best is marked. Without: the best draft length of several acceptance rates.
    `forerun theory measure` measures acceptance and cost on models.

    Example: forerun theory --alpha 0.8 --cost 0.05
    """
    if context.invoked_subcommand is not None:
        return
    if plot is not None:
        from forerun.bench.figures.theory import draw_theory
        from forerun.rendering.plots import write_figure

        with report_errors():
            check_figure(plot)
            write_figure(draw_theory, plot)
        typer.echo(f"drawn to {plot}", err=True)
    if as_json:
        typer.echo(json.dumps(_report(alpha, cost), indent=2))
    elif plot is None or alpha is not None:
        _print(alpha, cost)


def _report(alpha: float | None, cost: float) -> dict[str, Any]:
    """The results as JSON values, with the tables of the paper."""
    from forerun.core import theory as t

    return {
        "alpha": {f"{a:g}": _lines(a, cost) for a in ([alpha] if alpha is not None else ALPHAS)},
        "table_1": [
            {"alpha": a, "gamma": g, "operations": t.operations(a, g), "speed": t.speedup(a, g)}
            for a, g in TABLE_1
        ],
        "table_4": [
            {
                "task": task,
                "draft": draft,
                "temperature": temperature,
                "gamma": g,
                "alpha": a,
                "c": c,
                "exp": t.speedup(a, g, c),
                "printed": printed,
            }
            for task, draft, temperature, g, a, c, printed in TABLE_4
        ],
        "accepted_of_4": {f"{a:g}": t.expected_accepted(a, 4) for a in (0.5, 0.7, 0.9)},
    }


def _lines(alpha: float, cost: float) -> dict[str, Any]:
    """The gains at one acceptance rate, up to a few draft tokens beyond the best."""
    from forerun.core import theory as t

    best = t.best_gamma(alpha, cost, max_gamma=LONGEST)
    return {
        "cost": cost,
        "best_gamma": best,
        "gammas": [
            {
                "gamma": g,
                "tokens": t.expected_tokens(alpha, g),
                "speedup": t.speedup(alpha, g, cost),
                "operations": t.operations(alpha, g, cost),
            }
            for g in range(min(best + BEYOND, LONGEST) + 1)
        ],
    }


def _print(alpha: float | None, cost: float) -> None:
    """A table: all draft lengths of one acceptance rate, or the best of several rates."""
    from rich.console import Console
    from rich.table import Table

    one = alpha is not None
    title = f"acceptance rate {alpha:g}, cost {cost:g}" if one else f"best draft length at cost {cost:g}"
    table = Table(title=title, title_justify="left")
    head = ("draft length",) if one else ("acceptance rate", "draft length")
    for name in (*head, "tokens per step", "speedup", "operations", *(("",) if one else ())):
        table.add_column(name, justify="right")
    for a in (alpha,) if alpha is not None else ALPHAS:
        lines = _lines(a, cost)
        for line in lines["gammas"]:
            best = line["gamma"] == lines["best_gamma"]
            if one or best:
                cells = [f"{line['tokens']:.2f}", f"{line['speedup']:.2f}x", f"{line['operations']:.2f}x"]
                start = [str(line["gamma"])] if one else [f"{a:g}", str(line["gamma"])]
                mark = ["best" if best else ""] if one else []
                table.add_row(*start, *cells, *mark, style="bold green" if one and best else None)
    Console().print(table)
