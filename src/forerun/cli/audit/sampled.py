"""`forerun audit sampled`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.audit.options import (
    OUTPUT,
    REQUESTS,
    SERVERS,
    TEST,
    ApiKey,
    AsJson,
    Candidate,
    DialectName,
    Epsilon,
    ErrorRate,
    Model,
    NumPrompts,
    Output,
    Prompts,
    Timeout,
)
from forerun.cli.audit.sampling import prepare_cases, run_with_progress
from forerun.cli.audit.servers import server_connections
from forerun.cli.audit.show import check_page, finish
from forerun.cli.console import check_writable

if TYPE_CHECKING:
    from forerun.audit.sampled.run import SamplingPlan
    from forerun.audit.sampled.sweep import SweepCase
    from forerun.servers.endpoint import Endpoint


def sampled(
    candidate: Candidate,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The directory of the served model: samples are tested against its float32 distribution.",
            rich_help_panel=SERVERS,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The same server without speculation (URL or host:port), to test against.",
            rich_help_panel=SERVERS,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--settings",
            help="Test these sampling settings of the sweep only. Repeatable.",
            rich_help_panel=REQUESTS,
        ),
    ] = None,
    prompts: Prompts = None,
    num_prompts: NumPrompts = None,
    all_prompts: Annotated[
        bool,
        typer.Option(
            "--all-prompts",
            help="Combine every setting with every prompt, instead of taking turns.",
            rich_help_panel=REQUESTS,
        ),
    ] = False,
    bound: Annotated[
        float,
        typer.Option(
            help="Total variation distance to rule out, where the distribution allows.", rich_help_panel=TEST
        ),
    ] = 0.05,
    num_samples: Annotated[
        int,
        typer.Option(
            min=16, help="Samples of a setting that is tested but not bounded.", rich_help_panel=TEST
        ),
    ] = 512,
    max_samples: Annotated[
        int,
        typer.Option(
            min=16, help="Settings that need more samples for a bound are not bounded.", rich_help_panel=TEST
        ),
    ] = 20_000,
    max_tokens: Annotated[
        int, typer.Option(min=2, max=16, help="Tokens tested per sample.", rich_help_panel=REQUESTS)
    ] = 3,
    error_rate: ErrorRate = 0.05,
    epsilon: Epsilon = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=64, help="Requests in flight.", rich_help_panel=REQUESTS)
    ] = 8,
    choices: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Samples per request (`n`).",
            show_default="by the server's dialect",
            rich_help_panel=REQUESTS,
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Save the samples to this file.",
            show_default="a file under the user's cache",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Continue an interrupted audit with its samples.", rich_help_panel=OUTPUT
        ),
    ] = None,
    model: Model = None,
    api_key: ApiKey = "none",
    dialect: DialectName = None,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Test whether a server's samples follow the model's distribution, over a sweep of sampling settings.

    With --reference the samples are tested against probabilities computed in float32, with --baseline against
    a server without speculation. The audit stops as soon as the evidence suffices. After Ctrl-C it keeps its
    samples and prints how to continue with --resume.

    Exit code 0: no difference found. 1: a difference. 2: no verdict, also after Ctrl-C.

    Example: forerun audit sampled --candidate localhost:8000 --reference ./model --output report.html
    """
    from forerun.audit.prompts import read_prompts
    from forerun.audit.report import INTERRUPTED
    from forerun.audit.sample_journal import SampleJournal, default_path
    from forerun.audit.sampled.run import SampledAudit, SamplingPlan
    from forerun.audit.sampled.sweep import choose_settings, combine
    from forerun.audit.sampled.verdict import report
    from forerun.errors import ConfigurationError
    from forerun.servers.endpoint import accepted_note

    with server_connections(model, api_key, dialect, timeout) as connect:
        if (reference is None) == (baseline is None):
            raise ConfigurationError(
                "nothing to test the server against: give --reference MODEL or --baseline URL, one of the two"
            )
        check_page(output)
        if resume is None and keep is not None:
            _check_new(keep)
        plan = SamplingPlan(
            target_bound=bound,
            num_samples=num_samples,
            max_samples=max_samples,
            num_tokens=max_tokens,
            error_rate=error_rate,
            concurrency=concurrency,
            choices=choices,
        )
        loaded = read_prompts(prompts, num_prompts)
        cases = combine(choose_settings(settings or []), loaded, all_prompts=all_prompts)
        candidate_server = connect(candidate)
        baseline_server = None if baseline is None else connect(baseline)
        question = _question(candidate, reference or baseline, candidate_server, plan, cases, epsilon)
        rows = prepare_cases(cases, candidate_server, baseline_server, reference, plan, epsilon)
        journal = SampleJournal(
            resume or keep or default_path("sampled"), question, resume=resume is not None
        )
        before = candidate_server.read_num_accepted()
        audit = SampledAudit(rows, candidate_server, baseline_server, plan, journal)
        unfinished = run_with_progress(audit)
        notes = []
        if unfinished != INTERRUPTED:  # an interrupt closes the connections
            notes.append(accepted_note(before, candidate_server.read_num_accepted()))
        if unfinished:
            saved = sum(row.num_samples for row in rows)
            notes.append(f"{saved:,} samples are saved: repeat the command with --resume {journal.file}")
        found = report(audit, unfinished, question, notes)
        journal.close()
        finish(found, as_json=as_json, page=output)


def _check_new(keep: Path) -> None:
    """Raise if the samples cannot be written there; missing directories are created."""
    from forerun.audit.sample_journal import check_new

    check_new(keep)
    with contextlib.suppress(OSError):
        keep.parent.mkdir(parents=True, exist_ok=True)
    check_writable(keep)


def _question(
    candidate: str,
    against: str | None,
    server: Endpoint,
    plan: SamplingPlan,
    cases: list[SweepCase],
    epsilon: float | None,
) -> dict[str, Any]:
    """The configuration of the samples; an audit is resumed only if it is unchanged."""
    return {
        "candidate": candidate,
        "against": against,
        "model": server.model,
        "dialect": server.dialect.name,
        "cases": [
            [case.name, case.prompt.text or list(case.prompt.ids), str(case.sampling)] for case in cases
        ],
        "max_tokens": plan.num_tokens,
        "bound": plan.target_bound,
        "samples": [plan.num_samples, plan.max_samples],
        "error_rate": plan.error_rate,
        "epsilon": epsilon,
    }
