"""The finding of a check: its verdict, a reason, and the outputs behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

_MAX_EVIDENCE: Final = 5


class SuiteVerdict(Enum):
    """The verdict of one check.

    `NOT_APPLICABLE`: the server lacks or refuses what is checked. `UNDECIDED`: outputs differ, and without a
    reference model nothing tells rounding from a fault; or the check could not finish.
    """

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. `evidence` has the requests and the outputs that decide it, as JSON values."""

    verdict: SuiteVerdict
    reason: str
    evidence: tuple[dict[str, Any], ...] = ()


def passed(reason: str) -> Finding:
    """The finding of a check without a fault."""
    return Finding(SuiteVerdict.PASS, reason)


def failed(reason: str, evidence: Sequence[dict[str, Any]]) -> Finding:
    """The finding of a fault, with the first outputs that show it."""
    return Finding(SuiteVerdict.FAIL, reason, tuple(evidence[:_MAX_EVIDENCE]))


def undecided(reason: str, evidence: Sequence[dict[str, Any]] = ()) -> Finding:
    """The finding of a check without a verdict."""
    return Finding(SuiteVerdict.UNDECIDED, reason, tuple(evidence[:_MAX_EVIDENCE]))


def not_applicable(reason: str) -> Finding:
    """The finding where the server lacks or refuses what is checked."""
    return Finding(SuiteVerdict.NOT_APPLICABLE, reason)
