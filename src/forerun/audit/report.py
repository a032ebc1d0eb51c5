"""What every audit ends with: a verdict, the numbers behind it, and what a reader should know beside it."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from importlib.metadata import version
from typing import Any, Final

INTERRUPTED: Final = "interrupted"
"""The reason of an audit that the user stopped before it had a verdict."""


class AuditVerdict(Enum):
    """The verdict of an audit, with its exit code.

    `ROUNDING`: answers differ token for token, and rounding in the servers' precision explains every
    difference. Tokens are identical under `SAME` only.
    """

    SAME = "no difference found"
    ROUNDING = "no difference beyond rounding"
    DIFFERENT = "difference"
    OPEN = "no verdict"

    @property
    def exit_code(self) -> int:
        """0, 1 or 2."""
        return {
            AuditVerdict.SAME: 0,
            AuditVerdict.ROUNDING: 0,
            AuditVerdict.DIFFERENT: 1,
            AuditVerdict.OPEN: 2,
        }[self]


@dataclass(frozen=True, slots=True)
class AuditReport:
    """One audit, for terminals, machines and pages alike.

    `rows` are what was audited one by one; `columns` the keys of a row that people are shown, with their
    titles. `e_value` is evidence against the server (100: a hundred to one), `tv_bound` the largest total
    variation distance still compatible with the data; None where an audit has no such number.
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
        """Everything, for machines."""
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
            "made": made(),
        }


def made() -> dict[str, str]:
    """When and with what."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "forerun": version("forerun"),
        "python": platform.python_version(),
    }


def power_of_ten(log: float) -> float:
    """10^log, as far as a float goes."""
    return float(10.0 ** min(log, 300.0))
