"""The report of a sampled audit: verdict, rows and power."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from forerun.audit.report import AuditReport, AuditVerdict, power_of_ten
from forerun.audit.sampled.distance import tokens_to_detect
from forerun.audit.sampled.run import CaseRun, SampledAudit

BIASES: Final = (0.01, 0.05)


def report(
    audit: SampledAudit, unfinished: str, question: dict[str, Any], notes: Sequence[str] = ()
) -> AuditReport:
    """Build the report; `unfinished` is why the audit stopped early, or empty."""
    finding = _finding(audit, unfinished)
    bounded = [row for row in audit.rows if row.bounded and not row.refused]
    bounds = [1.0 if row.bound is None else row.bound for row in bounded]
    return AuditReport(
        audit="sampled",
        verdict=finding,
        reason=_reason(audit, finding, unfinished),
        rows=tuple(_row(audit, row) for row in audit.rows),
        columns={
            "name": "settings",
            "finding": "",
            "num_samples": "samples",
            "e_value": "e-value",
            "tv_bound": "distance <=",
            "epsilon": "rounding <=",
        },
        e_value=power_of_ten(audit.evidence),
        tv_bound=max(bounds, default=None),
        num_samples=sum(row.num_samples for row in audit.rows),
        notes=(*notes, *_notes(audit)),
        question=question,
        details={"power": _power(audit), "trace": audit.trace, "error_rate": audit.plan.error_rate},
    )


def _finding(audit: SampledAudit, unfinished: str) -> AuditVerdict:
    found = max((evidence for _, evidence in audit.trace), default=0.0)
    if found >= -math.log10(audit.plan.error_rate):
        return AuditVerdict.DIFFERENT
    if unfinished or all(row.refused or not row.num_samples for row in audit.rows):
        return AuditVerdict.NO_VERDICT
    return AuditVerdict.SAME


def _reason(audit: SampledAudit, finding: AuditVerdict, unfinished: str) -> str:
    if finding is AuditVerdict.NO_VERDICT:
        return unfinished or "the server refused all sampling settings"
    if finding is AuditVerdict.SAME:
        return "the samples follow the expected distribution, up to the rounding allowed for each setting"
    worst = max(audit.rows, key=lambda row: row.test.log_wealth())
    return (
        "the samples do not follow the expected distribution; strongest evidence with settings"
        f" {worst.case.name!r}, best-fitting alternative: {worst.best_alternative}"
    )


def _power(audit: SampledAudit) -> list[dict[str, Any]]:
    """The number of tokens that detects each bias, at the median epsilon of the cases."""
    measured = [row.test.epsilon for row in audit.rows if row.num_samples]
    epsilon = float(np.median(measured)) if measured else 0.0
    bettors = 2 * len(audit.rows) * len(audit.rows[0].test.alternatives)
    return [
        {
            "bias": bias,
            "epsilon": epsilon,
            "num_tokens": tokens_to_detect(bias, epsilon, audit.plan.error_rate, bettors),
        }
        for bias in BIASES
    ]


def _row(audit: SampledAudit, row: CaseRun) -> dict[str, Any]:
    log = row.test.log_wealth() / math.log(10)
    flagged = log >= math.log10(2 * len(audit.rows) / audit.plan.error_rate)
    return {
        "name": row.case.name,
        "finding": _row_finding(row, flagged),
        "num_samples": row.num_samples,
        "num_tokens": row.test.num_tokens,
        "e_value": power_of_ten(log),
        "tv_bound": row.bound if row.bounded else None,
        "epsilon": row.test.epsilon,
        "num_accepted": row.num_accepted,
        "alternative": row.best_alternative if log > 0 else None,
        "refused": row.refused or None,
        "trace": row.trace,
        "frequencies": row.test.frequencies(),
    }


def _row_finding(row: CaseRun, flagged: bool) -> str:
    if row.refused:
        return "refused"
    if flagged:
        return "difference"
    return "same" if row.num_sampled_tokens else ""


def _notes(audit: SampledAudit) -> list[str]:
    notes = []
    if refused := [row.case.name for row in audit.rows if row.refused]:
        notes.append(f"the server refused: {', '.join(refused)}")
    notes += audit.server_faults
    reported = [row.num_accepted for row in audit.rows if row.num_accepted is not None]
    if reported and not sum(reported):
        notes.append("no draft token was accepted: the samples did not test speculation")
    return notes
