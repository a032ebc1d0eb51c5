"""Runs the checks of the catalogue, and reports their verdicts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from forerun.audit.report import INTERRUPTED, AuditReport, AuditVerdict
from forerun.audit.suite.catalogue import CHECKS, SuiteCheck
from forerun.audit.suite.finding import Finding, SuiteVerdict, failed, not_applicable, undecided
from forerun.audit.suite.session import Session
from forerun.errors import (
    ConfigurationError,
    ForerunError,
    RequestRefused,
    ServerFailed,
    UnreadableAnswer,
    did_you_mean,
)
from forerun.servers.endpoint import accepted_note, fault_notes

COLUMNS = {"name": "check", "finding": "verdict", "reason": "reason", "reports": "known from"}

_STOPPED: Final = "the server stopped in an earlier check"

ProgressHandler = Callable[[int, SuiteCheck], None]
"""Called before each check, with the number of finished ones."""


def choose_checks(names: Sequence[str] = (), without: Sequence[str] = ()) -> list[SuiteCheck]:
    """The checks with these names, by default all, without others."""
    known = [check.name for check in CHECKS]
    for name in (*names, *without):
        if name not in known:
            raise ConfigurationError(f"unknown check {name!r}; {did_you_mean(name, known)}")
    return [check for check in CHECKS if (not names or check.name in names) and check.name not in without]


def run_suite(
    session: Session,
    checks: Sequence[SuiteCheck],
    question: dict[str, Any],
    progress: ProgressHandler = lambda *_: None,
) -> AuditReport:
    """Run checks one after the other; a server that stops responding fails the check that it stops in."""
    rows: list[dict[str, Any]] = []
    before = session.candidate.read_num_accepted()
    interrupted = has_stopped = False
    for number, check in enumerate(checks):
        progress(number, check)
        began = time.perf_counter()
        try:
            finding = undecided(_STOPPED) if has_stopped else _run(check, session)
        except KeyboardInterrupt:
            interrupted = True
            break
        except _Stopped as error:
            has_stopped, finding = True, failed("the server stopped in this check", [{"error": str(error)}])
        rows.append(_row(check, finding, time.perf_counter() - began))
    return _report(session, rows, question, before, interrupted=interrupted)


class _Stopped(Exception):
    """The candidate does not respond any more."""


def _run(check: SuiteCheck, session: Session) -> Finding:
    try:
        return check.run(session)
    except RequestRefused as error:
        return not_applicable(f"the server refuses the request: {error}")
    except UnreadableAnswer as error:
        return not_applicable(str(error))
    except ServerFailed as error:
        if not session.candidate.responds():
            raise _Stopped(str(error)) from error
        return undecided(f"could not finish: {error}")
    except ForerunError as error:
        return undecided(f"could not finish: {error}")


def _row(check: SuiteCheck, finding: Finding, seconds: float) -> dict[str, Any]:
    return {
        "name": check.name,
        "claim": check.claim,
        "finding": finding.verdict.value,
        "reason": finding.reason,
        "reports": ", ".join(check.reports),
        "seconds": round(seconds, 2),
        "evidence": list(finding.evidence),
    }


def _report(
    session: Session,
    rows: list[dict[str, Any]],
    question: dict[str, Any],
    accepted_before: float | None,
    *,
    interrupted: bool,
) -> AuditReport:
    found = Counter(row["finding"] for row in rows)
    counts = ", ".join(f"{num} {name}" for name, num in found.items())
    if failures := [row["name"] for row in rows if row["finding"] == SuiteVerdict.FAIL.value]:
        verdict, reason = AuditVerdict.DIFFERENT, f"failed: {', '.join(failures)} ({counts})"
    elif interrupted or found[SuiteVerdict.UNDECIDED.value] or not found[SuiteVerdict.PASS.value]:
        verdict, reason = AuditVerdict.NO_VERDICT, f"{INTERRUPTED}; {counts}" if interrupted else counts
    else:
        verdict, reason = AuditVerdict.SAME, counts
    return AuditReport(
        audit="suite",
        verdict=verdict,
        reason=reason,
        rows=tuple(rows),
        columns=COLUMNS,
        notes=tuple(_notes(session, accepted_before, interrupted=interrupted)),
        question=question,
        details={"findings": dict(found), "seconds": sum(row["seconds"] for row in rows)},
    )


def _notes(session: Session, before: float | None, *, interrupted: bool) -> list[str]:
    notes = list(fault_notes(session.candidate, session.baseline))
    if interrupted:
        return notes
    return [*notes, accepted_note(before, session.candidate.read_num_accepted())]
