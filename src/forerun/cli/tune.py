"""`forerun tune`: recommend a configuration from measurements on your own prompts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.console import check_writable, report_errors
from forerun.prompts import PROMPT_FORMATS
from forerun.servers.processes import STARTUP_TIMEOUT

if TYPE_CHECKING:
    from forerun.tune.recommendation import Recommendation


def tune(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(exists=True, help="The directory of the model.")],
    prompts: Annotated[
        str,
        typer.Option(
            help=f"Prompts that are typical of your traffic: a file ({PROMPT_FORMATS}), or code-editing.",
            metavar="FILE",
        ),
    ],
    draft_model: Annotated[
        list[Path] | None, typer.Option(exists=True, help="A draft model to try; may be repeated.")
    ] = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Write the configuration, for `forerun serve --speculation`."),
    ] = Path("speculation.json"),
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page with plots.")] = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Maximum number of prompts to run.")] = 24,
    max_tokens: Annotated[
        int, typer.Option(min=16, help="Maximum number of output tokens per prompt.")
    ] = 128,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature of your requests.")] = 0.0,
    dtype: Annotated[str, typer.Option(help="dtype to serve in.")] = "bfloat16",
    startup_timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Time limit for each server to start.")
    ] = STARTUP_TIMEOUT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Predict and measure the speedup of each drafter on your own prompts, and recommend one.

    Arguments behind `--` are passed to every vLLM server that the command starts.

    Example: `forerun tune MODEL --prompts prompts.jsonl --report tune.html`
    """
    from forerun.bench.served_model import ServedModel
    from forerun.bench.suites import read_suite
    from forerun.tune.page import as_values, write_page
    from forerun.tune.run import recommend
    from forerun.tune.workload import TuningPrompts

    with report_errors():
        for each in filter(None, (output, report)):
            check_writable(each)
        workload = TuningPrompts(read_suite(prompts), max_tokens, temperature).sample(num_prompts)
        with _status() as watch:
            served = ServedModel(
                model, dtype, vllm_flags=tuple(context.args), startup_timeout=startup_timeout
            )
            advice = recommend(served, workload, [str(each) for each in draft_model or ()], watch)
        output.write_text(
            advice.config.model_dump_json(exclude_defaults=True, indent=1) + "\n", encoding="utf-8"
        )
        if report is not None:
            write_page(advice, report)
    if as_json:
        typer.echo(json.dumps(as_values(advice), indent=1))
    else:
        _print(advice)
        command = [
            "forerun",
            "serve",
            str(model),
            "--dtype",
            dtype,
            "--speculation",
            str(output),
            *context.args,
        ]
        typer.echo(f"\n{shlex.join(command)}   # add --dry-run to print the vLLM command")


def _print(advice: Recommendation) -> None:
    """Print the table of choices and the recommendation."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for title in ("choice", "predicted speedup", "tokens/step", "draft tokens/step"):
        table.add_column(title, justify="left" if title == "choice" else "right")
    for each in advice.predictions:
        numbers = (each.tokens_per_step, each.draft_tokens_per_step)
        style = "bold green" if each is advice.best else None
        how = f"{each.choice.name}{' (measured)' if each.measured else ''}"
        table.add_row(how, str(each.speedup), *(f"{number:.2f}" for number in numbers), style=style)
    Console().print(table)
    Console().print(advice.paragraph(), highlight=False)


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """A status line on standard error."""
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
