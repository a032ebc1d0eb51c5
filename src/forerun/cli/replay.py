"""`forerun replay`: the acceptance of a drafter on recorded outputs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from forerun.cli.console import progress_bar, report_errors
from forerun.cli.replay_planning import planning_report, print_planning
from forerun.cli.replay_sources import make_suffix_drafter, parse_sources, read_recording

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forerun.bench.replay import Replay, ReplayStats
    from forerun.bench.transcripts import Transcript
    from forerun.types import Drafter

_BARS = "▁▂▃▄▅▆▇█"


Name = Literal["ngram", "suffix", "vllm-ngram"]


_DRAFTING = "Drafting"
_LINES = "Transcripts"
_PLANNING = "Planning"


def replay(
    transcripts: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="JSON lines with `cat` and, as token ids, `prompt` and `out`."),
    ],
    drafter: Annotated[
        Name,
        typer.Option(
            help="The drafter; vllm-ngram is vLLM's n-gram rule, for comparison.", rich_help_panel=_DRAFTING
        ),
    ] = "suffix",
    nodes: Annotated[
        int, typer.Option(min=1, max=1024, help="Draft tokens per step, at most.", rich_help_panel=_DRAFTING)
    ] = 16,
    chain: Annotated[
        bool, typer.Option("--chain", help="Draft a chain instead of a tree.", rich_help_panel=_DRAFTING)
    ] = False,
    share_outputs: Annotated[
        bool,
        typer.Option(
            "--share-outputs",
            help="Draft from the outputs of earlier transcripts too.",
            rich_help_panel=_DRAFTING,
        ),
    ] = False,
    sources: Annotated[
        str,
        typer.Option(
            help="Sources of the suffix drafter: suffix, static, recycled, last-logits. All but suffix need"
            " recorded logits.",
            rich_help_panel=_DRAFTING,
        ),
    ] = "suffix",
    logits: Annotated[
        Path | None,
        typer.Option(
            help="Recorded logits (scripts/record_logits.py); by default FILE with the ending .logits.npz.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    prompt_logits: Annotated[
        bool,
        typer.Option(
            "--prompt-logits",
            help="Recycle the logits of prompts too, which engines do not compute.",
            rich_help_panel=_DRAFTING,
        ),
    ] = False,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(help="Draft from this corpus too. Repeatable.", rich_help_panel=_DRAFTING),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Cost of a draft token, as a share of a step; the controller then drops drafts that cost"
            " more than they gain.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None,
    ahead: Annotated[
        bool,
        typer.Option(
            "--ahead",
            help="Compare draft lengths planned one step ahead, as under vLLM's async scheduling, with draft"
            " lengths chosen in the same step. Drafts are chains.",
            rich_help_panel=_PLANNING,
        ),
    ] = False,
    concurrency: Annotated[
        int,
        typer.Option(min=1, help="Requests per step; needs --ahead.", rich_help_panel=_PLANNING),
    ] = 1,
    lines: Annotated[
        Literal["all", "odd", "even"],
        typer.Option(help="Replay these lines only.", rich_help_panel=_LINES),
    ] = "all",
    fit: Annotated[
        Literal["nothing", "odd", "even"],
        typer.Option(
            help="Replay these lines first, uncounted, to fit the acceptance estimates.",
            rich_help_panel=_LINES,
        ),
    ] = "nothing",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object instead of a table.", rich_help_panel="Output"),
    ] = False,
) -> None:
    """Replay recorded outputs through a drafter, without running a model.

    At temperature 0 the target emits the recorded tokens again, so the recording determines which draft
    tokens are accepted. Tokens per step is the mean number of tokens that one forward pass emits.

    Example: forerun replay transcripts.jsonl --drafter suffix --price 0.012
    """
    from forerun.bench.replay import Replay
    from forerun.bench.transcripts import read_transcripts

    options = {"chain": chain or ahead, "share_outputs": share_outputs, "corpora": corpus or []}
    settings: dict[str, Any] = {
        "drafter": drafter,
        "nodes": nodes,
        "lines": lines,
        "fit": fit,
        "price": price,
    }
    _check_planning(fit, concurrency, ahead=ahead)
    chosen = parse_sources(sources, drafter)
    with report_errors():
        recording = read_recording(transcripts, logits, chosen)
        recorded = read_transcripts(transcripts, lines, recording)
        before = [] if fit == "nothing" else read_transcripts(transcripts, fit, recording)
        _check_lengths(transcripts, recorded)
        make_drafter = partial(_drafter, drafter, options)
        if recording is not None:
            settings |= {"sources": chosen, "prompt_logits": prompt_logits}
            make_drafter = partial(make_suffix_drafter, chosen, recording, options)
        if ahead:
            settings |= {"concurrency": concurrency}
            report = planning_report(recorded, make_drafter, nodes, price, concurrency)
        else:
            make_replay = partial(Replay, nodes=nodes, prompt_logits=prompt_logits)
            run, stats_by_category = _replay(before, recorded, make_drafter, make_replay, price)
            report = _report(stats_by_category, price) | {"reliability": _reliability(run)}
    if as_json:
        typer.echo(json.dumps(settings | options | report, indent=2, default=str))
    elif ahead:
        print_planning(report)
    else:
        _print(stats_by_category, price, run)


def _check_planning(fit: str, concurrency: int, *, ahead: bool) -> None:
    """Raise `BadParameter` for options that the kind of replay does not have."""
    if ahead and fit != "nothing":
        raise typer.BadParameter("--fit has no effect with --ahead: leave one of them out")
    if concurrency > 1 and not ahead:
        raise typer.BadParameter(f"--concurrency {concurrency} needs --ahead: only that replay has batches")


def _check_lengths(file: Path, recorded: Sequence[Transcript]) -> None:
    """Exit if no output is long enough for a replay."""
    from forerun.bench.replay import MIN_OUTPUT_TOKENS

    if all(len(transcript.output) < MIN_OUTPUT_TOKENS for transcript in recorded):
        typer.echo(
            f"every output in {file} has fewer than {MIN_OUTPUT_TOKENS} tokens: none is replayed", err=True
        )
        raise typer.Exit(1)


def _replay(
    before: Sequence[Transcript],
    recorded: Sequence[Transcript],
    make_drafter: Callable[[], Drafter],
    make_replay: Callable[..., Replay],
    price: float | None,
) -> tuple[Replay, dict[str, ReplayStats]]:
    """Replay transcripts after uncounted ones; returns the replay and its totals by category."""
    from forerun.bench.replay import MIN_OUTPUT_TOKENS, linear_cost

    long_enough = [transcript for transcript in recorded if len(transcript.output) >= MIN_OUTPUT_TOKENS]
    make_replay(make_drafter()).run(long_enough[:2])  # compiles
    run = make_replay(make_drafter(), cost=None if price is None else linear_cost(price))
    with progress_bar("replaying", len(before) + len(recorded)) as progress:
        run.run(before, progress)
        return run, run.run(recorded, lambda num: progress(len(before) + num))


def _drafter(name: Name, options: dict[str, Any]) -> Drafter:
    """A new drafter of this name."""
    if name == "vllm-ngram":
        from forerun.bench.baseline_drafters import VllmNgram

        if options["share_outputs"] or options["corpora"]:
            raise typer.BadParameter(f"{name} drafts from a request's own text only: use --drafter suffix")
        return VllmNgram()
    from forerun.config import SpeculationConfig
    from forerun.drafters.registry import make_drafter

    settings = {key: value for key, value in options.items() if key != "chain"}
    return make_drafter(SpeculationConfig(drafters=(name,), **settings), chain=options["chain"])


def _report(stats_by_category: dict[str, ReplayStats], price: float | None) -> dict[str, Any]:
    """The results as JSON values."""
    from forerun.bench.replay import geometric_mean

    return {
        "geometric_mean": geometric_mean(stats.tokens_per_step for stats in stats_by_category.values()),
        "categories": {
            name: {
                "tokens_per_step": stats.tokens_per_step,
                "draft_tokens_per_step": stats.draft_tokens_per_step,
                "acceptance_by_depth": stats.acceptance_by_depth,
                "microseconds_per_proposal": stats.microseconds_per_proposal,
                "outputs": stats.num_outputs,
                "tokens": stats.num_tokens,
                "steps": stats.num_steps,
                "draft_tokens": stats.num_draft_tokens,
            }
            | ({} if price is None else {"tokens_per_cost": stats.tokens_per_cost(price)})
            for name, stats in sorted(stats_by_category.items())
        },
    }


def _reliability(run: Replay) -> dict[str, Any]:
    """The calibration of the controller's estimates."""
    keys = ("estimated", "accepted", "draft_tokens")
    return {
        "calibration_error": run.reliability.calibration_error,
        "bins": [dict(zip(keys, each, strict=True)) for each in run.reliability.bins],
    }


def _print(stats_by_category: dict[str, ReplayStats], price: float | None, run: Replay) -> None:
    """Print a table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from forerun.bench.replay import geometric_mean

    table = Table(show_footer=True, box=box.SIMPLE_HEAD)
    mean = geometric_mean(stats.tokens_per_step for stats in stats_by_category.values())
    table.add_column("category", "geometric mean", no_wrap=True)
    table.add_column("n", justify="right")
    table.add_column("tokens/step", f"{mean:.2f}", justify="right", style="bold")
    if price is not None:
        priced = geometric_mean(stats.tokens_per_cost(price) for stats in stats_by_category.values())
        table.add_column(f"at {price:.1%}", f"{priced:.2f}", justify="right", style="bold")
    table.add_column("draft tokens/step", justify="right")
    table.add_column("by depth", no_wrap=True)
    table.add_column("µs", justify="right")
    for name, stats in sorted(stats_by_category.items()):
        cells = [name, str(stats.num_outputs), f"{stats.tokens_per_step:.2f}"]
        if price is not None:
            cells.append(f"{stats.tokens_per_cost(price):.2f}")
        bars = "".join(_BARS[min(7, int(8 * share))] for share in stats.acceptance_by_depth[:8])
        table.add_row(
            *cells, f"{stats.draft_tokens_per_step:.1f}", bars, f"{stats.microseconds_per_proposal:.0f}"
        )
    Console().print(table)
    bins = run.reliability.bins
    if bins:
        shares = "  ".join(f"{estimate:.0%} → {share:.0%}" for estimate, share, _ in bins)
        Console().print(
            f"estimated → accepted:  {shares}\ncalibration error {run.reliability.calibration_error:.3f}",
            highlight=False,
            soft_wrap=True,
        )
