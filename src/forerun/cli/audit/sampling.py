"""Preparation and progress of `forerun audit sampled`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forerun.audit.sampled.run import CaseRun, SampledAudit, SamplingPlan
    from forerun.audit.sampled.sweep import SweepCase
    from forerun.servers.endpoint import Endpoint


def prepare_cases(
    cases: list[SweepCase],
    candidate: Endpoint,
    baseline: Endpoint | None,
    reference: str | None,
    plan: SamplingPlan,
    epsilon: float | None,
) -> list[CaseRun]:
    """The runs of all cases, with the rounding allowed for each."""
    from rich.console import Console

    with Console(stderr=True).status("measuring the server's rounding error"):
        if baseline is not None:
            from forerun.audit.sampled.preparation import against_server

            return against_server(cases, baseline, plan, epsilon)
        from forerun.audit.sampled.preparation import against_model
        from forerun.models.reference import Reference

        assert reference is not None
        return against_model(cases, candidate, Reference(reference), plan, epsilon)


def run_with_progress(audit: SampledAudit) -> str:
    """Run the audit with a progress bar that shows the evidence so far."""
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
        task = progress.add_task("", total=sum(row.num_planned for row in audit.rows))

        def update(rows: list[CaseRun], evidence: float) -> None:
            progress.update(
                task,
                completed=sum(row.num_samples for row in rows),
                description=f"e-value {10**evidence:.2g}" if evidence < 300 else "e-value > 1e300",
            )

        return audit.run(update)
