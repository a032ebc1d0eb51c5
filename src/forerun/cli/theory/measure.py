"""`forerun theory measure`: acceptance, costs and speedups of drafts, measured on models."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from forerun.cli.console import check_figure, comma_separated, report_errors
from forerun.prompts import PROMPT_FORMATS

_OUTPUT: Final = "Output"
_WORKLOAD: Final = "Workload"


def measure(
    target: Annotated[str, typer.Option(help="The target model: a directory, or a name.")],
    prompts: Annotated[
        list[str],
        typer.Option(
            help=f"A file of prompts ({PROMPT_FORMATS}), or code-editing; may be repeated.",
            metavar="FILE",
            rich_help_panel=_WORKLOAD,
        ),
    ],
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="The directory of a draft model, ngram or suffix; may be repeated.",
            show_default="ngram and suffix",
        ),
    ] = None,
    num_prompts: Annotated[
        int, typer.Option(min=1, help="Prompts per category.", rich_help_panel=_WORKLOAD)
    ] = 4,
    max_tokens: Annotated[
        int,
        typer.Option(min=8, help="Maximum number of output tokens per prompt.", rich_help_panel=_WORKLOAD),
    ] = 64,
    temperature: Annotated[
        str,
        typer.Option(help="Sampling temperatures, separated by commas.", rich_help_panel=_WORKLOAD),
    ] = "0,1",
    draft_length: Annotated[
        str,
        typer.Option(help="Draft lengths of which speed is measured, separated by commas."),
    ] = "1,2,4,8",
    speed: Annotated[
        bool, typer.Option("--speed/--no-speed", help="Measure costs and speed, not only acceptance.")
    ] = True,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="bfloat16, float16 or float32. If left out: the checkpoint's own, but float32 for a bfloat16"
            " checkpoint on a CPU without bfloat16 instructions."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw acceptance, and predicted and measured speedup, to this file (.png, .svg or .pdf).",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of tables.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Measure how much of several drafts a model accepts, what they cost, and how well theory predicts it.

    The measurements of Leviathan et al. 2023 (tables 2 to 5) on your own models and prompts: the acceptance
    rate of drafts along outputs of the target, by category and temperature, for draft models, lookup drafters
    and, as floors, bigrams, unigrams and random tokens; the cost of a draft token; predicted and measured
    speedup by draft length, one request at a time; what an oracle for the draft length would gain; and what
    lenience would gain and change. Acceptance is exact at each position, not a share of accepted draws.

    Example: forerun theory measure --target MODEL --draft DRAFT_MODEL --prompts prompts.jsonl
    """
    with report_errors():
        import torch

        from forerun.bench.provenance import provenance
        from forerun.bench.run_facts import PACKAGES
        from forerun.bench.suites import read_suite
        from forerun.theory.measure import MeasurementPlan
        from forerun.theory.measure import measure as run

        if plot is not None:
            check_figure(plot)
        plan = MeasurementPlan(
            target,
            tuple(draft or ("ngram", "suffix")),
            tuple(comma_separated(temperature, float)),
            tuple(comma_separated(draft_length, int)) if speed else (),
            max_tokens,
            dtype,
        )
        questions = [each for file in prompts for each in read_suite(file, num_prompts)]
        with _progress() as progress:
            found = run(plan, questions, progress)
        if plot is not None:
            from forerun.bench.figures.acceptance import draw_acceptance
            from forerun.rendering.plots import write_figure
            from forerun.theory.acceptance import ALL

            write_figure(lambda: draw_acceptance(found, ALL), plot)
            typer.echo(f"drawn to {plot}", err=True)
    if as_json:
        command = ["forerun", *(Path(each).name if "/" in each else each for each in sys.argv[1:])]
        facts = provenance(shlex.join(command), PACKAGES, torch.get_num_threads())
        typer.echo(json.dumps(facts | found, indent=1))
    else:
        _print(found)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for one activity after the other."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}
        bars.add_task("loading models", total=None)

        def update(title: str, done: int, total: int) -> None:
            if title not in tasks:
                for each in bars.task_ids:
                    bars.remove_task(each)
                tasks[title] = bars.add_task(title, total=total)
            bars.update(tasks[title], completed=done)

        yield update


def _print(found: Mapping[str, Any]) -> None:
    """The results as tables."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from forerun.theory.tables import tables

    for each in tables(found):
        table = Table(title=each.title, title_justify="left", box=box.SIMPLE_HEAD)
        for number, name in enumerate(each.columns):
            table.add_column(name, justify="right" if number else "left")
        for row in each.rows:
            table.add_row(*row)
        Console().print(table)
