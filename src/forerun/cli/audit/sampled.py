"""`forerun audit sampled`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.audit.show import (
    ApiKey,
    AsJson,
    DialectName,
    Html,
    Model,
    Timeout,
    Url,
    finish,
    servers,
)

if TYPE_CHECKING:
    from forerun.audit.sampled.run import Plan, Row
    from forerun.audit.sampled.sweep import Case
    from forerun.servers.endpoint import Endpoint


def sampled(
    candidate: Url,
    reference: Annotated[
        str | None,
        typer.Option(help="A directory with the model the server runs: samples are held against its law."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The same server without speculation, to be held against.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--settings", help="Only these of the sweep; may be repeated.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A prompt a line, as text or JSON; our own if left out.")
    ] = None,
    all_prompts: Annotated[
        bool, typer.Option("--all-prompts", help="Every setting with every prompt, not in turn.")
    ] = False,
    bound: Annotated[
        float, typer.Option(help="The distance to be ruled out, where the reference's law allows.")
    ] = 0.05,
    samples: Annotated[
        int, typer.Option(min=16, help="Samples of a setting that is tested but not bounded.")
    ] = 512,
    most_samples: Annotated[
        int, typer.Option(min=16, help="More than this are not asked for a bound.")
    ] = 20_000,
    tokens: Annotated[int, typer.Option(min=2, max=16, help="Tokens of each sample that are judged.")] = 3,
    error_rate: Annotated[
        float, typer.Option(min=1e-9, max=0.5, help="How often an honest server may be found different.")
    ] = 0.05,
    epsilon: Annotated[
        float | None,
        typer.Option(min=1e-6, max=0.5, help="Allow this distance for rounding; measured if left out."),
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, max=64, help="Requests in flight.")] = 8,
    choices: Annotated[int | None, typer.Option(min=1, help="Answers asked for in one request.")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the samples in this file; under the user's cache if left out.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the samples of this file.")] = None,
    model: Model = None,
    api_key: ApiKey = "none",
    dialect: DialectName = None,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
    html: Html = None,
) -> None:
    """Test whether a server's samples follow the model's law, over a sweep of sampling settings.

    With --reference they are held against probabilities worked out in float32, with --baseline against a
    plain server. Stops early when the evidence is in; may be interrupted and resumed.
    """
    from forerun.audit.journal import Journal, default_file
    from forerun.audit.prompts import read_prompts
    from forerun.audit.sampled.findings import report
    from forerun.audit.sampled.run import Plan, SampledAudit
    from forerun.audit.sampled.sweep import choose_settings, combine
    from forerun.errors import ConfigurationError

    with servers(model, api_key, dialect, timeout) as connect:
        if (reference is None) == (baseline is None):
            raise ConfigurationError(
                "say what to hold the server against: --reference MODEL or --baseline URL, one of the two"
            )
        plan = Plan(
            target=bound,
            num_samples=samples,
            most_samples=most_samples,
            num_tokens=tokens,
            error_rate=error_rate,
            at_once=at_once,
            choices=choices,
        )
        cases = combine(choose_settings(settings or []), read_prompts(prompts), all_prompts=all_prompts)
        tested = connect(candidate)
        plain = None if baseline is None else connect(baseline)
        question = _question(candidate, reference or baseline, tested, plan, cases, epsilon)
        rows = _prepare(cases, tested, plain, reference, plan, epsilon)
        journal = Journal(resume or keep or default_file("sampled"), question, resume=resume is not None)
        before = tested.num_accepted()
        audit = SampledAudit(rows, tested, plain, plan, journal)
        unfinished = _run(audit)
        notes = [_told_accepted(before, tested.num_accepted(), sum(row.num_said for row in rows))]
        if unfinished:
            notes.append(f"go on with: --resume {journal.file}")
        found = report(audit, unfinished, question, [note for note in notes if note])
        journal.close()
        finish(found, as_json=as_json, html=html)


def _prepare(
    cases: list[Case],
    tested: Endpoint,
    plain: Endpoint | None,
    reference: str | None,
    plan: Plan,
    epsilon: float | None,
) -> list[Row]:
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

        def watch(rows: list[Row], evidence: float) -> None:
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
    plan: Plan,
    cases: list[Case],
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
    """How much of what was said had been guessed, where the server's metrics tell."""
    if before is None or after is None:
        return "the server does not tell how many guesses it accepted"
    if after == before:
        return "no guess was accepted, by the server's metrics: if it does not speculate, nothing was tested"
    return (
        f"{after - before:,.0f} accepted guesses, by the server's metrics ({num_said:,} tokens were judged)"
    )
