"""`forerun audit greedy` and `forerun audit seeded`: the same tokens, and if not, was it rounding?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from forerun.audit.parity.answer_pairs import AnswerPair
from forerun.audit.parity.divergence_rate import DivergenceTest, parting_chance
from forerun.audit.parity.near_ties import NearTieReferee
from forerun.audit.report import INTERRUPTED, AuditReport, AuditVerdict, power_of_ten
from forerun.errors import ForerunError
from forerun.servers.endpoint import Token

COLUMNS = {
    "name": "request",
    "finding": "",
    "num_tokens": "tokens",
    "at": "differs at",
    "plain": "baseline",
    "tested": "candidate",
    "gap": "logit gap",
    "bound": "near-tie up to",
}


_SEEDED_NOTE = (
    "with the same noise, two servers sample different tokens where rounding shifts their distributions;"
    " identical tokens are to be expected only if both compute in float32"
)


class Allowance(Protocol):
    """How much rounding may move logits, and the law at the places of an answer."""

    def __call__(self, pair: AnswerPair) -> tuple[float, float]:
        """sigma and epsilon."""


def judge_greedy(
    pairs: Iterable[AnswerPair], referee: NearTieReferee | None, watch: Callable[[int], None]
) -> AuditReport:
    """Classify every first difference: a near-tie or a difference; undecided without a reference."""
    rows: list[dict[str, Any]] = []
    unfinished = _each(pairs, lambda pair: rows.append(_greedy_row(pair, len(rows) + 1, referee)), watch)
    found = Counter(row["finding"] for row in rows)
    finding, reason = _greedy_verdict(found, len(rows), unfinished)
    return AuditReport(
        audit="greedy",
        verdict=finding,
        reason=reason,
        rows=tuple(rows),
        columns=COLUMNS,
        num_samples=len(rows),
        notes=() if referee is None or not found - Counter(same=len(rows)) else (referee.told,),
        details={"findings": dict(found), "num_tokens": sum(row["num_tokens"] for row in rows)},
    )


def _greedy_verdict(found: Counter[str], num: int, unfinished: str) -> tuple[AuditVerdict, str]:
    if found["difference"]:
        return (
            AuditVerdict.DIFFERENT,
            f"{found['difference']} of {num} answers differ where rounding does not explain it",
        )
    if unfinished or not num:
        return AuditVerdict.OPEN, _unfinished(unfinished, num)
    if found["undecided"]:
        return AuditVerdict.OPEN, (
            f"{found['undecided']} of {num} answers differ; give --reference MODEL to separate near-ties from"
            " faults"
        )
    if near := found["near-tie"]:
        return AuditVerdict.ROUNDING, (
            f"{near} of {num} answers differ, each first at a near-tie; the other {num - near} are identical,"
            " token for token"
        )
    return AuditVerdict.SAME, f"all {num} answers are identical, token for token"


def _unfinished(reason: str, num: int) -> str:
    """Why there is no verdict, and after an interrupt how much was compared."""
    if reason == INTERRUPTED:
        return f"{reason} after {num} answers; run it again, with --num-prompts for fewer"
    return reason or "no request was sent"


def _greedy_row(pair: AnswerPair, number: int, referee: NearTieReferee | None) -> dict[str, Any]:
    row = _row(pair, number)
    at = pair.at
    if at is None:
        return row
    if referee is None:
        return row | {"finding": "undecided"}
    ruling = referee.rule(pair.prompt.ids, pair.baseline[:at], pair.parting(), pair.sampling)
    found = "near-tie" if ruling.near_tie else "difference"
    return row | {"finding": found, "gap": ruling.gap, "bound": ruling.bound}


def judge_seeded(
    pairs: Iterable[AnswerPair],
    allowance: Allowance,
    possible: Callable[[AnswerPair, float], bool] | None,
    error_rate: float,
    watch: Callable[[int], None],
) -> AuditReport:
    """Whether answers with the same seed part more often than rounding explains.

    Where `possible` says that a token is not allowed at all by the reference, the row says so: a hint.
    """
    rows: list[dict[str, Any]] = []
    bets = DivergenceTest()
    trace: list[tuple[int, float]] = []

    def take(pair: AnswerPair) -> None:
        row = _row(pair, len(rows) + 1)
        sigma, epsilon = allowance(pair)
        for place in range(row["num_tokens"]):
            bets.hear(place == pair.at, parting_chance(epsilon))
        if pair.at is not None:
            ruled_out = possible is not None and not possible(pair, sigma)
            row["finding"] = "parted, and not as allowed" if ruled_out else "parted"
        rows.append(row | {"epsilon": epsilon})
        trace.append((sum(each["num_tokens"] for each in rows), bets.evidence))

    unfinished = _each(pairs, take, watch)
    parted = sum(row["finding"] != "same" for row in rows)
    highest = max((evidence for _, evidence in trace), default=0.0)
    if highest >= -math.log10(error_rate):
        finding, reason = (
            AuditVerdict.DIFFERENT,
            f"{parted} of {len(rows)} answers differ: more than rounding explains",
        )
    elif unfinished or not rows:
        finding, reason = AuditVerdict.OPEN, _unfinished(unfinished, len(rows))
    elif parted:
        finding, reason = (
            AuditVerdict.ROUNDING,
            f"{parted} of {len(rows)} answers differ, no more than rounding explains",
        )
    else:
        finding, reason = AuditVerdict.SAME, f"all {len(rows)} answers are identical, token for token"
    columns = {key: title for key, title in COLUMNS.items() if key not in ("gap", "bound")}
    return AuditReport(
        audit="seeded",
        verdict=finding,
        reason=reason,
        rows=tuple(rows),
        columns=columns | {"epsilon": "allowed"},
        e_value=power_of_ten(bets.evidence),
        num_samples=len(rows),
        notes=(_SEEDED_NOTE,) if parted else (),
        details={"trace": trace, "error_rate": error_rate},
    )


def _each(
    pairs: Iterable[AnswerPair], take: Callable[[AnswerPair], None], watch: Callable[[int], None]
) -> str:
    """Take every pair; what kept us from the end, if anything did."""
    try:
        for number, pair in enumerate(pairs, 1):
            take(pair)
            watch(number)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ForerunError as error:
        return str(error)
    return ""


def _row(pair: AnswerPair, number: int) -> dict[str, Any]:
    """What is told of any pair."""
    at = pair.at
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
    plain, tested = pair.parting()
    said: tuple[Token, ...] = pair.baseline[:at]
    return row | {
        "at": at,
        "plain": plain,
        "tested": tested,
        "prompt": list(pair.prompt.ids),
        "said": list(said),
    }
