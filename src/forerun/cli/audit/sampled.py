"""`forerun audit sampled`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.audit.show import (
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
    check_page,
    finish,
    servers,
)
from forerun.cli.console import check_writable

if TYPE_CHECKING:
    from forerun.audit.sampled.run import CaseRun, SamplingPlan
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
    from forerun.audit.sample_journal import Journal, default_file
    from forerun.audit.sampled.run import SampledAudit, SamplingPlan
    from forerun.audit.sampled.sweep import choose_settings, combine
    from forerun.audit.sampled.verdict import report
    from forerun.errors import ConfigurationError

    with servers(model, api_key, dialect, timeout) as connect:
        if (reference is None) == (baseline is None):
            raise ConfigurationError(
                "nothing to test the server against: give --reference MODEL or --baseline URL, one of the two"
            )
        check_page(output)
        if resume is None and keep is not None:
            _check_new(keep)
        plan = SamplingPlan(
            target=bound,
            num_samples=num_samples,
            most_samples=max_samples,
            num_tokens=max_tokens,
            error_rate=error_rate,
            at_once=concurrency,
            choices=choices,
        )
        asked = read_prompts(prompts, num_prompts)
        cases = combine(choose_settings(settings or []), asked, all_prompts=all_prompts)
        tested = connect(candidate)
        plain = None if baseline is None else connect(baseline)
        question = _question(candidate, reference or baseline, tested, plan, cases, epsilon)
        rows = _prepare(cases, tested, plain, reference, plan, epsilon)
        journal = Journal(resume or keep or default_file("sampled"), question, resume=resume is not None)
        before = tested.num_accepted()
        audit = SampledAudit(rows, tested, plain, plan, journal)
        unfinished = _run(audit)
        notes = []
        if unfinished != INTERRUPTED:  # then the connections are closed
            notes.append(_told_accepted(before, tested.num_accepted(), sum(row.num_said for row in rows)))
        if unfinished:
            kept = sum(row.num_samples for row in rows)
            notes.append(f"{kept:,} samples are kept: repeat the command with --resume {journal.file}")
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


def _prepare(
    cases: list[SweepCase],
    tested: Endpoint,
    plain: Endpoint | None,
    reference: str | None,
    plan: SamplingPlan,
    epsilon: float | None,
) -> list[CaseRun]:
    """The rows, with how much rounding each is allowed."""
    from rich.console import Console

    with Console(stderr=True).status("measuring how much the server rounds"):
        if plain is not None:
            from forerun.audit.sampled.prepare import against_server

            return against_server(cases, plain, plan, epsilon)
        from forerun.audit.sampled.prepare import against_model
        from forerun.models.reference import Reference

        assert reference is not None
        return against_model(cases, tested, Reference(reference), plan, epsilon)


def _run(audit: Any) -> str:
    """Ask and judge, with a bar that shows the evidence so far."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("sampling"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=sum(row.planned for row in audit.rows))

        def watch(rows: list[CaseRun], evidence: float) -> None:
            progress.update(
                task,
                completed=sum(row.num_samples for row in rows),
                description=f"evidence {10**evidence:.2g} to 1" if evidence < 300 else "evidence is in",
            )

        unfinished: str = audit.run(watch)
        return unfinished


def _question(
    candidate: str,
    against: str | None,
    tested: Endpoint,
    plan: SamplingPlan,
    cases: list[SweepCase],
    epsilon: float | None,
) -> dict[str, Any]:
    """What the samples are samples of; an audit is resumed only if this is the same."""
    return {
        "candidate": candidate,
        "against": against,
        "model": tested.model,
        "dialect": tested.dialect.name,
        "cases": [
            [case.name, case.prompt.text or list(case.prompt.ids), str(case.sampling)] for case in cases
        ],
        "tokens": plan.num_tokens,
        "bound": plan.target,
        "samples": [plan.num_samples, plan.most_samples],
        "error_rate": plan.error_rate,
        "epsilon": epsilon,
    }


def _told_accepted(before: float | None, after: float | None, num_said: int) -> str:
    """How many draft tokens the server accepted during the audit, if it has such a metric."""
    if before is None or after is None:
        return "the server has no metric of accepted draft tokens"
    if after == before:
        return "the server's metrics show no accepted draft token: without speculation, nothing was tested"
    return f"{after - before:,.0f} accepted draft tokens by the server's metrics ({num_said:,} tokens tested)"
