"""`forerun tune`: what should I use?"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.console import check_writable, report_errors
from forerun.servers.processes import STARTUP_TIMEOUT

if TYPE_CHECKING:
    from forerun.tune.recommendation import Recommendation


def tune(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(exists=True, help="The directory of the model.")],
    prompts: Annotated[str, typer.Option(help="A file of prompts like yours, or code-editing.")],
    draft_model: Annotated[
        list[Path] | None, typer.Option(exists=True, help="A smaller model to try; may be repeated.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The configuration, for `forerun serve --speculation`.")
    ] = Path("speculation.json"),
    page: Annotated[Path | None, typer.Option(help="A page with plots, self-contained.")] = None,
    num: Annotated[int, typer.Option("--num", min=1, help="The most prompts that are asked.")] = 24,
    tokens: Annotated[int, typer.Option(min=16, help="The most tokens of an answer.")] = 128,
    temperature: Annotated[float, typer.Option(min=0, help="As your requests have it.")] = 0.0,
    dtype: Annotated[str, typer.Option(help="The precision to serve in.")] = "bfloat16",
    startup_timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Time limit for each server to start.")
    ] = STARTUP_TIMEOUT,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything for machines.")] = False,
) -> None:
    """Measure on your own prompts what each way to guess would gain, and say which to use.

    Arguments behind `--` are passed to every vLLM server that the command starts.
    """
    from forerun.bench.suites import read_suite
    from forerun.bench.systems import ServedModel
    from forerun.tune.measure import TuningPrompts
    from forerun.tune.page import as_values, write_page
    from forerun.tune.run import recommend

    with report_errors():
        for each in filter(None, (output, page)):
            check_writable(each)
        asked = TuningPrompts(read_suite(prompts), tokens, temperature).some(num)
        with _telling() as watch:
            served = ServedModel(
                model, dtype, vllm_flags=tuple(context.args), startup_timeout=startup_timeout
            )
            advice = recommend(served, asked, [str(each) for each in draft_model or ()], watch)
        output.write_text(
            advice.config.model_dump_json(exclude_defaults=True, indent=1) + "\n", encoding="utf-8"
        )
        if page is not None:
            write_page(advice, page)
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
        typer.echo(f"\n{shlex.join(command)}   # with --dry-run: the `vllm serve` that it stands for")


def _print(advice: Recommendation) -> None:
    """A table of the choices, and the paragraph."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for title in ("choice", "predicted gain", "tokens/step", "guesses/step"):
        table.add_column(title, justify="left" if title == "choice" else "right")
    for each in advice.predictions:
        numbers = (each.tokens_per_step, each.guesses_per_step)
        style = "bold green" if each is advice.best else None
        how = f"{each.choice.name}{' (by a run)' if each.measured else ''}"
        table.add_row(how, str(each.gain), *(f"{number:.2f}" for number in numbers), style=style)
    Console().print(table)
    Console().print(advice.paragraph(), highlight=False)


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """What is going on, on standard error."""
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
