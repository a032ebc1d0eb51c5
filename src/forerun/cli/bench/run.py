"""`forerun bench run`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forerun.cli.bench.show import print_results
from forerun.cli.console import check_writable, comma_separated, progress_bar, report_errors
from forerun.prompts import PROMPT_FORMATS
from forerun.servers.processes import STARTUP_TIMEOUT

if TYPE_CHECKING:
    from forerun.bench.record_writer import RecordWriter
    from forerun.bench.served_model import ServedModel
    from forerun.bench.suites import Question

_SYSTEMS: Final = "Systems"
_WORKLOAD: Final = "Workload"
_OUTPUT: Final = "Output"


def run(
    context: typer.Context,
    suites: Annotated[
        list[str] | None,
        typer.Argument(help=f"Files of prompts ({PROMPT_FORMATS}), or code-editing.", metavar="SUITE"),
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
    from forerun.bench.launch import measure_systems
    from forerun.bench.record_writer import RecordWriter
    from forerun.bench.run import BenchPlan
    from forerun.bench.run_facts import run_facts
    from forerun.bench.served_model import ServedModel, required_flags
    from forerun.bench.suites import read_suite
    from forerun.bench.system_names import FORERUN
    from forerun.bench.systems import find_systems

    with report_errors():
        check_writable(output)
        files, per_category = _suites(suites, prompts, num_prompts)
        questions = [each for file in files for each in read_suite(file, per_category)]
        plan = BenchPlan(
            questions,
            comma_separated(temperature, float),
            comma_separated(concurrency, int),
            max_tokens,
            seed,
        )
        served = None
        if model is not None:
            flags = (*required_flags(plan.temperatures), *context.args)
            served = ServedModel(model, dtype, draft_model, gguf, max_length, flags, startup_timeout)
        names = [*(against or ()), *(() if only else (FORERUN,))]
        systems = find_systems(served, names, dict(_pair(each) for each in baseline or ()))
        command = ["forerun", *(each if "=" in each else Path(each).name for each in sys.argv[1:])]
        writer = RecordWriter(output, run_facts(command, plan, served, systems))
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the servers
        try:
            if plan.is_complete([each.name for each in systems], writer):
                typer.echo(
                    f"{output} already holds this run; give another --output to run it again", err=True
                )
            else:
                with progress_bar("starting", len(plan)) as on_progress:
                    measure_systems(plan, systems, writer, startup_timeout, on_progress)
            _classify_differences(served, questions, writer)
        except KeyboardInterrupt:
            typer.echo(f"interrupted; the same command resumes the run in {output}", err=True)
            raise typer.Exit(130) from None
        finally:
            writer.close()
        print_results(writer.record, as_json=as_json)
        _exit_if_failed(writer, [each.name for each in systems])


def _exit_if_failed(writer: RecordWriter, names: Sequence[str]) -> None:
    """Exit with code 1 and the reasons if a system failed or left requests of this run unanswered."""
    failed = {name: why for name in names if (why := writer.record.failure(writer.run, name))}
    if not failed:
        return
    for name, why in failed.items():
        typer.echo(f"{name}: {why}", err=True)
    which = "every system" if len(failed) == len(names) else f"{len(failed)} of {len(names)} systems"
    typer.echo(f"{which} failed: {', '.join(failed)}; logs are next to {writer.file}", err=True)
    raise typer.Exit(1)


def _classify_differences(
    model: ServedModel | None, questions: Sequence[Question], writer: RecordWriter
) -> None:
    """Classify every greedy response that diverges from its baseline; without a model they stay undecided."""
    from forerun.bench.output_check import first_differences, near_tie_classifier

    differing = [each for each in first_differences(writer.record) if each[0].case.run == writer.run]
    if not differing or model is None:
        return
    from forerun.audit.parity.near_ties import NearTieReferee
    from forerun.models.loading import load_tokenizer
    from forerun.models.reference import Reference
    from forerun.models.tokenization import encode

    tokenizer = load_tokenizer(model.path)
    reference = Reference(str(model.path))
    classify = near_tie_classifier(
        NearTieReferee(reference, [model.dtype] * 2),
        lambda text: encode(tokenizer, [{"role": "user", "content": text}]),
        questions,
    )
    with progress_bar("classifying divergences", len(differing)) as done:
        for number, each in enumerate(differing, 1):
            writer.add(classify(*each))
            done(number)


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
