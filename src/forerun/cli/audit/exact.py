"""`forerun audit exact`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forerun.cli.audit.options import AsJson, Output
from forerun.cli.audit.show import check_page, finish, no_verdict_on_error
from forerun.cli.console import progress_bar

if TYPE_CHECKING:
    from forerun.audit.exact.claims import Claim
    from forerun.audit.report import AuditReport


def exact(as_json: AsJson = False, output: Output = None) -> None:
    """Prove every verifier exact by enumeration in rational arithmetic, and catch every sabotaged one.

    Exit code 0: all claims hold. 1: one does not. 2: no verdict, also after Ctrl-C.

    Example: forerun audit exact --output exact.html
    """
    from forerun.audit.exact.run import NUM_CLAIMS, run

    began = time.perf_counter()
    rows: list[Claim] = []
    with no_verdict_on_error():
        check_page(output, with_figures=False)
        with progress_bar("enumerating", NUM_CLAIMS) as progress:
            for row in run():
                rows.append(row)
                progress(len(rows), f"enumerating {row.name}")
        finish(_report(rows, time.perf_counter() - began), as_json=as_json, page=output)


def _report(rows: list[Claim], seconds: float) -> AuditReport:
    """The claims as an audit report."""
    from forerun.audit.exact.claims import ClaimKind
    from forerun.audit.exact.run import as_json
    from forerun.audit.report import AuditReport, AuditVerdict
    from forerun.errors import MissingExtra

    broken = [row.name for row in rows if row.held is False]
    not_run = [row.name for row in rows if row.held is None]
    outcomes = sum(row.num_outcomes for row in rows)
    distances = [float(row.distance or 0) for row in rows if row.kind is ClaimKind.LOSSLESS]
    return AuditReport(
        audit="exact",
        verdict=AuditVerdict.DIFFERENT if broken else AuditVerdict.SAME,
        reason=f"NOT exact: {', '.join(broken)}" if broken else _all_hold(rows, outcomes, seconds),
        rows=tuple(as_json(row) for row in rows),
        columns={
            "name": "",
            "kind": "claim",
            "finding": "verdict",
            "cases": "cases",
            "outcomes": "outcomes",
            "distance_float": "distance",
        },
        tv_bound=max(distances, default=None),
        num_samples=outcomes,
        notes=(f"not run: {'; '.join(not_run)} ({MissingExtra('torch', 'torch')})",) if not_run else (),
        details={"seconds": round(seconds, 2), "not_run": not_run},
    )


def _all_hold(rows: list[Claim], outcomes: int, seconds: float) -> str:
    """The reason of an audit without a counterexample."""
    not_run = sum(row.held is None for row in rows)
    skipped = f"; {not_run} claims not run, since torch is not installed" if not_run else ""
    return f"all {len(rows) - not_run} claims hold, over {outcomes:,} outcomes in {seconds:.0f} s{skipped}"
