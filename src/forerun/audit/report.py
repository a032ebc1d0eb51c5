"""The report that every audit produces: its verdict, the numbers behind it, and notes."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from importlib.metadata import version
from typing import Any, Final

INTERRUPTED: Final = "interrupted"
"""The reason of a report whose audit the user stopped before it had a verdict."""


class AuditVerdict(Enum):
    """The verdict of an audit, with its exit code.

    `ROUNDING`: outputs differ, and rounding in the servers' precision explains every difference. Outputs are
    identical, token for token, under `SAME` only.
    """

    SAME = "no difference found"
    ROUNDING = "no difference beyond rounding"
    DIFFERENT = "difference"
    NO_VERDICT = "no verdict"

    @property
    def exit_code(self) -> int:
        """0: no difference. 1: a difference. 2: no verdict."""
        return {
            AuditVerdict.SAME: 0,
            AuditVerdict.ROUNDING: 0,
            AuditVerdict.DIFFERENT: 1,
            AuditVerdict.NO_VERDICT: 2,
        }[self]


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of one audit, rendered as a table, as JSON or as a page.

    `rows` has one entry per audited item; `columns` maps the keys of a row that are displayed to their
    titles. `e_value` is the evidence against the server (100: a hundred to one). `tv_bound` is the largest
    total variation distance compatible with the samples. Either is None if the audit does not compute it.
    """

    audit: str
    verdict: AuditVerdict
    reason: str
    rows: tuple[dict[str, Any], ...]
    columns: dict[str, str]
    e_value: float | None = None
    tv_bound: float | None = None
    num_samples: int = 0
    notes: tuple[str, ...] = ()
    question: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The complete report."""
        return {
            "audit": self.audit,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "e_value": self.e_value,
            "tv_bound": self.tv_bound,
            "num_samples": self.num_samples,
            "notes": list(self.notes),
            **self.details,
            "rows": list(self.rows),
            "question": self.question,
            "provenance": provenance(),
        }


def provenance() -> dict[str, str]:
    """Date and versions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "forerun": version("forerun"),
        "python": platform.python_version(),
    }


def power_of_ten(log: float) -> float:
    """10^log, capped at 10^300."""
    return float(10.0 ** min(log, 300.0))
