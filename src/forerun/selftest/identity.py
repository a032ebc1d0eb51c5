"""Identical output: greedy and seeded outputs of `forerun serve` against the recorded ones of stock vLLM."""

from __future__ import annotations

from typing import Final

from forerun.audit.parity.run import compare_greedy, compare_seeded
from forerun.audit.report import AuditReport, AuditVerdict
from forerun.selftest.checks import CheckVerdict, SelftestCheck
from forerun.selftest.plan import SelftestPlan
from forerun.selftest.recorded_outputs import (
    CONCURRENCY,
    LogprobReferee,
    RecordedOutputs,
    pair_outputs,
    request_all,
)
from forerun.servers.endpoint import Endpoint

EVERY_DRAFT_TOKEN: Final = {"vllm_xargs": {"forerun_adaptive": 0, "forerun_max_draft": 8}}
"""Request fields that verify every draft token: by default, a text that is hard to draft has no drafts."""

ALONE: Final = "greedy one at a time"

KINDS: Final = ("greedy", ALONE, "seeded")

EXACT: Final = "float32"

_ROW_KEYS: Final = ("name", "finding", "position", "baseline", "candidate", "gap", "bound")


def check_name(kind: str, dtype: str) -> str:
    """The name of an identity check."""
    return f"identical output, {kind}, {dtype}"


def compare_outputs_of(
    server: Endpoint, recorded: RecordedOutputs, plan: SelftestPlan, dtype: str
) -> list[SelftestCheck]:
    """Compare a server's greedy and seeded outputs in a dtype with the recorded ones."""
    requests = (plan.greedy_requests, plan.alone_requests, plan.seeded_requests)
    outputs = (recorded.greedy, recorded.alone, recorded.seeded)
    checks = []
    for kind, some, baseline in zip(KINDS, requests, outputs, strict=True):
        before = server.read_num_accepted()
        concurrency = 1 if kind == ALONE else CONCURRENCY
        candidate = request_all(server, some, plan.max_tokens, concurrency=concurrency)
        pairs = pair_outputs(some, baseline, candidate)
        if kind == "seeded":
            report = compare_seeded(pairs, recorded.allowance, None, plan.error_rate, _ignore)
        else:
            report = compare_greedy(pairs, LogprobReferee(baseline, recorded.sigma), _ignore)
        after = server.read_num_accepted()
        num_accepted = None if before is None or after is None else round(after - before)
        checks.append(identity_check(report, kind, dtype, num_accepted))
    return checks


def identity_check(report: AuditReport, kind: str, dtype: str, num_accepted: int | None) -> SelftestCheck:
    """The check of a comparison. In float32 a difference that rounding may explain leaves it undecided."""
    differing = [row for row in report.rows if row["finding"] != "same"]
    verdict, reason = _verdict(report.verdict, dtype, num_accepted)
    num, num_tokens = len(report.rows), sum(row["num_tokens"] for row in report.rows)
    finding = f"{num - len(differing)} of {num} outputs identical ({num_tokens} tokens compared)"
    if differing:
        finding += f"; {_explain(report, differing)}"
    if num_accepted is not None:
        finding += f"; {num_accepted} draft tokens accepted"
    return SelftestCheck(
        check_name(kind, dtype),
        verdict,
        finding + reason,
        is_identity=True,
        details={
            "dtype": dtype,
            "num_outputs": num,
            "num_identical": num - len(differing),
            "num_tokens": num_tokens,
            "num_accepted": num_accepted,
            "e_value": report.e_value,
            "notes": list(report.notes),
            "differences": [{key: row[key] for key in _ROW_KEYS if key in row} for row in differing],
        },
    )


def _verdict(found: AuditVerdict, dtype: str, num_accepted: int | None) -> tuple[CheckVerdict, str]:
    """The verdict, and what has to be added to the finding."""
    if found is AuditVerdict.DIFFERENT:
        return CheckVerdict.FAILED, ""
    if found is AuditVerdict.NO_VERDICT or num_accepted is None:
        return CheckVerdict.UNDECIDED, "" if num_accepted is not None else "; the server exports no metrics"
    if num_accepted == 0:
        return CheckVerdict.UNDECIDED, ", so nothing was verified"
    if found is AuditVerdict.ROUNDING and dtype == EXACT:
        return CheckVerdict.UNDECIDED, "; float32 kernels may round by batch shape (TF32 in attention)"
    return CheckVerdict.PASSED, ""


def _explain(report: AuditReport, differing: list[dict[str, object]]) -> str:
    """Whether the differences are near-ties (greedy), or no more than rounding explains (seeded)."""
    if report.verdict is AuditVerdict.NO_VERDICT:
        return report.reason
    if report.audit == "greedy":
        num_ties = sum(row["finding"] == "near-tie" for row in differing)
        beyond = len(differing) - num_ties
        return f"{len(differing)} differ: {num_ties} first at a near-tie, {beyond} beyond rounding"
    rounding = report.verdict is AuditVerdict.ROUNDING
    return f"{len(differing)} differ, {'no ' if rounding else ''}more than rounding explains"


def _ignore(_: int) -> None:
    """The self-test shows its own progress."""
