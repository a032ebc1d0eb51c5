"""`forerun audit exact`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forerun.cli.audit.show import AsJson, Html, finish, judging
from forerun.cli.console import counting

if TYPE_CHECKING:
    from forerun.audit.exact.registry import Row
    from forerun.audit.report import Report


def exact(as_json: AsJson = False, html: Html = None) -> None:
    """Prove every verifier by enumeration in exact arithmetic, and catch every sabotaged one."""
    from forerun.audit.exact.run import NUM_ROWS, run

    began = time.perf_counter()
    rows: list[Row] = []
    with judging():
        with counting("enumerating", NUM_ROWS) as watch:
            for row in run():
                rows.append(row)
                watch(len(rows), f"enumerating {row.name}")
        finish(_report(rows, time.perf_counter() - began), as_json=as_json, html=html)


def _report(rows: list[Row], seconds: float) -> Report:
    """The rows in the form that all audits share."""
    from forerun.audit.exact.registry import Kind
    from forerun.audit.exact.run import as_json
    from forerun.audit.report import Finding, Report

    broken = [row.name for row in rows if not row.held]
    outcomes = sum(row.num_outcomes for row in rows)
    distances = [float(row.distance or 0) for row in rows if row.kind is Kind.LOSSLESS]
    return Report(
        audit="exact",
        verdict=Finding.DIFFERENT if broken else Finding.SAME,
        reason=f"NOT exact: {', '.join(broken)}"
        if broken
        else f"all {len(rows)} claims hold, over {outcomes:,} outcomes in {seconds:.0f} s",
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
        details={"seconds": round(seconds, 2)},
    )
