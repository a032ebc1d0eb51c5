"""A check of the self-test and its verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class CheckVerdict(Enum):
    """The outcome of a check. Undecided: the run did not produce what the check needs."""

    PASSED = "pass"
    FAILED = "fail"
    NOT_APPLICABLE = "not applicable"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class SelftestCheck:
    """A check with its verdict, one line about it, and the numbers behind it.

    A failed identity check makes the command fail; the other checks are for information.
    """

    name: str
    verdict: CheckVerdict
    finding: str
    is_identity: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The check as JSON values."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "finding": self.finding,
            "identity": self.is_identity,
            **self.details,
        }


def undecided(name: str, reason: str, *, is_identity: bool = False) -> SelftestCheck:
    """A check that could not be made."""
    return SelftestCheck(name, CheckVerdict.UNDECIDED, reason, is_identity)
