"""`forerun audit greedy` and `forerun audit seeded`: identical output, up to what rounding explains."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from forerun.audit.parity.answer_pairs import AnswerPair
from forerun.audit.parity.divergence_rate import DivergenceTest, max_divergence_probability
from forerun.audit.parity.near_ties import TieReferee
from forerun.audit.report import INTERRUPTED, AuditReport, AuditVerdict, power_of_ten
from forerun.errors import ForerunError

COLUMNS = {
    "name": "request",
    "finding": "",
    "num_tokens": "tokens",
    "position": "differs at",
    "baseline": "baseline",
    "candidate": "candidate",
    "gap": "logit gap",
    "bound": "near-tie up to",
}

_COLUMNS_WITHOUT_GAPS = {key: title for key, title in COLUMNS.items() if key not in ("gap", "bound")}

_SEEDED_NOTE = (
    "with the same noise, two servers sample different tokens where rounding shifts their distributions;"
    " expect identical tokens only if both compute in float32"
)


class RoundingAllowance(Protocol):
    """Measures how much rounding may change logits (sigma) and distributions (epsilon) for a request."""

    def __call__(self, pair: AnswerPair) -> tuple[float, float]:
        """Return sigma and epsilon."""


def compare_greedy(
    pairs: Iterable[AnswerPair], referee: TieReferee | None, progress: Callable[[int], None]
) -> AuditReport:
    """Classify every first difference as a near-tie or a difference; without a referee it stays undecided."""
    rows: list[dict[str, Any]] = []
    unfinished = _each(pairs, lambda pair: rows.append(_greedy_row(pair, len(rows) + 1, referee)), progress)
    found = Counter(row["finding"] for row in rows)
    finding, reason = _greedy_verdict(found, len(rows), unfinished)
    return AuditReport(
        audit="greedy",
        verdict=finding,
        reason=reason,
        rows=tuple(rows),
        columns=COLUMNS,
        num_samples=len(rows),
        notes=() if referee is None or not found - Counter(same=len(rows)) else (referee.definition,),
        details={"findings": dict(found), "num_tokens": sum(row["num_tokens"] for row in rows)},
    )


def _greedy_verdict(found: Counter[str], num: int, unfinished: str) -> tuple[AuditVerdict, str]:
    if found["difference"]:
        return (
            AuditVerdict.DIFFERENT,
            f"{found['difference']} of {num} outputs differ in a way that rounding does not explain",
        )
    if unfinished or not num:
        return AuditVerdict.NO_VERDICT, _unfinished(unfinished, num)
    if found["undecided"]:
        return AuditVerdict.NO_VERDICT, (
            f"{found['undecided']} of {num} outputs differ; give --reference MODEL to separate near-ties from"
            " faults"
        )
    if near := found["near-tie"]:
        return AuditVerdict.ROUNDING, (
            f"{near} of {num} outputs differ, each first at a near-tie; the other {num - near} are identical,"
            " token for token"
        )
    return AuditVerdict.SAME, f"all {num} outputs are identical, token for token"


def _unfinished(reason: str, num: int) -> str:
    """Why there is no verdict; after an interrupt, also how many outputs were compared."""
    if reason == INTERRUPTED:
        return f"{reason} after {num} outputs; run it again, with --num-prompts for fewer"
    return reason or "no request was sent"


def _greedy_row(pair: AnswerPair, number: int, referee: TieReferee | None) -> dict[str, Any]:
    row = _row(pair, number)
    at = pair.position
    if at is None:
        return row
    if referee is None:
        return row | {"finding": "undecided"}
    ruling = referee.classify(pair.prompt.ids, pair.baseline[:at], pair.differing_tokens(), pair.sampling)
    found = "near-tie" if ruling.near_tie else "difference"
    return row | {"finding": found, "gap": ruling.gap, "bound": ruling.bound}


def compare_seeded(
    pairs: Iterable[AnswerPair],
    allowance: RoundingAllowance,
    possible: Callable[[AnswerPair, float], bool] | None,
    error_rate: float,
    progress: Callable[[int], None],
) -> AuditReport:
    """Test whether outputs with the same seed diverge more often than rounding explains.

    A row is marked if `possible` finds that the candidate's token has probability 0 under the reference.
    """
    rows: list[dict[str, Any]] = []
    bets = DivergenceTest()
    trace: list[tuple[int, float]] = []

    def compare(pair: AnswerPair) -> None:
        row = _row(pair, len(rows) + 1)
        sigma, epsilon = allowance(pair)
        for position in range(row["num_tokens"]):
            bets.observe(position == pair.position, max_divergence_probability(epsilon))
        if pair.position is not None:
            impossible = possible is not None and not possible(pair, sigma)
            row["finding"] = "differs, token has probability 0" if impossible else "differs"
        rows.append(row | {"epsilon": epsilon})
        trace.append((sum(each["num_tokens"] for each in rows), bets.evidence))

    unfinished = _each(pairs, compare, progress)
    num_differing = sum(row["finding"] != "same" for row in rows)
    highest = max((evidence for _, evidence in trace), default=0.0)
    if highest >= -math.log10(error_rate):
        finding, reason = (
            AuditVerdict.DIFFERENT,
            f"{num_differing} of {len(rows)} outputs differ, more than rounding explains",
        )
    elif unfinished or not rows:
        finding, reason = AuditVerdict.NO_VERDICT, _unfinished(unfinished, len(rows))
    elif num_differing:
        finding, reason = (
            AuditVerdict.ROUNDING,
            f"{num_differing} of {len(rows)} outputs differ, no more than rounding explains",
        )
    else:
        finding, reason = AuditVerdict.SAME, f"all {len(rows)} outputs are identical, token for token"
    return AuditReport(
        audit="seeded",
        verdict=finding,
        reason=reason,
        rows=tuple(rows),
        columns=_COLUMNS_WITHOUT_GAPS | {"epsilon": "rounding <="},
        e_value=power_of_ten(bets.evidence),
        num_samples=len(rows),
        notes=(_SEEDED_NOTE,) if num_differing else (),
        details={"trace": trace, "error_rate": error_rate},
    )


def compare_identical(
    audit: str, pairs: Iterable[AnswerPair], progress: Callable[[int], None]
) -> AuditReport:
    """Report every difference as a fault, for servers in invariant mode, where rounding explains none."""
    rows: list[dict[str, Any]] = []

    def compare(pair: AnswerPair) -> None:
        row = _row(pair, len(rows) + 1)
        rows.append(row if pair.position is None else row | {"finding": "difference"})

    unfinished = _each(pairs, compare, progress)
    num_differing = sum(row["finding"] != "same" for row in rows)
    if num_differing:
        finding, reason = (
            AuditVerdict.DIFFERENT,
            f"{num_differing} of {len(rows)} outputs differ; in invariant mode rounding explains none",
        )
    elif unfinished or not rows:
        finding, reason = AuditVerdict.NO_VERDICT, _unfinished(unfinished, len(rows))
    else:
        finding, reason = AuditVerdict.SAME, f"all {len(rows)} outputs are identical, token for token"
    return AuditReport(
        audit=audit,
        verdict=finding,
        reason=reason,
        rows=tuple(rows),
        columns=_COLUMNS_WITHOUT_GAPS,
        num_samples=len(rows),
        details={"num_tokens": sum(row["num_tokens"] for row in rows)},
    )


def _each(
    pairs: Iterable[AnswerPair], compare: Callable[[AnswerPair], None], progress: Callable[[int], None]
) -> str:
    """Compare every pair. Returns why it stopped early, or an empty string."""
    try:
        for number, pair in enumerate(pairs, 1):
            compare(pair)
            progress(number)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ForerunError as error:
        return str(error)
    return ""


def _row(pair: AnswerPair, number: int) -> dict[str, Any]:
    """The columns that both audits share."""
    at = pair.position
    seed = "" if pair.sampling.seed is None else f", seed {pair.sampling.seed}"
    head = pair.prompt.text[:24] or f"prompt {number}"
    row: dict[str, Any] = {
        "name": f"{head!r}{seed}",
        "finding": "same",
        "num_tokens": len(pair.baseline) if at is None else at + 1,
        "num_accepted": pair.num_accepted,
    }
    if at is None:
        return row
    baseline, candidate = pair.differing_tokens()
    return row | {
        "position": at,
        "baseline": baseline,
        "candidate": candidate,
        "prompt": list(pair.prompt.ids),
        "prefix": list(pair.baseline[:at]),
    }
