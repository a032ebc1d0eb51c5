"""Losslessness of a server as an assertion, for tests of other projects.

    from forerun.testing import assert_lossless

    def test_speculation_changes_no_output(forerun_candidate, forerun_baseline):
        assert_lossless(forerun_candidate, forerun_baseline)

The two fixtures are URLs given as `pytest --forerun-candidate URL --forerun-baseline URL`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from forerun.audit.parity.near_ties import NearTieReferee
from forerun.audit.prompts import DEFAULT_PROMPTS
from forerun.audit.report import AuditReport
from forerun.audit.suite.finding import SuiteVerdict
from forerun.audit.suite.run import choose_checks, run_suite
from forerun.audit.suite.session import Session
from forerun.servers.completions import Prompt
from forerun.servers.endpoint import Endpoint

_MAX_EVIDENCE_CHARACTERS = 2000


def assert_lossless(  # noqa: PLR0913  (keyword settings of the public API)
    candidate: str,
    baseline: str | None = None,
    *,
    reference: str | None = None,
    checks: Sequence[str] = (),
    skip: Sequence[str] = (),
    prompts: Sequence[str] = DEFAULT_PROMPTS,
    thorough: bool = False,
    allow_undecided: bool = False,
    model: str | None = None,
    api_key: str = "none",
) -> AuditReport:
    """Run the checks of `forerun audit suite` on a server, and raise `AssertionError` if one fails.

    `candidate` and `baseline` are URLs, the latter of the same server without speculation; `reference` is the
    directory of the model. An undecided check fails too unless `allow_undecided`, and so does a run in which
    no check passes. Returns the report.
    """
    with ExitStack() as stack:
        servers = [
            stack.enter_context(closing(Endpoint(url, model=model, api_key=api_key)))
            for url in (candidate, baseline)
            if url is not None
        ]
        loaded, referee = _reference(reference)
        session = Session(
            servers[0],
            servers[1] if baseline is not None else None,
            referee=referee,
            prompts=[Prompt(text, tuple(loaded.encode(text)) if loaded else ()) for text in prompts],
            thorough=thorough,
            reference=loaded,
        )
        question = {"candidate": candidate, "baseline": baseline, "reference": reference}
        report = run_suite(session, choose_checks(checks, skip), question)
    wrong = {SuiteVerdict.FAIL.value} | (set() if allow_undecided else {SuiteVerdict.UNDECIDED.value})
    if rows := [row for row in report.rows if row["finding"] in wrong]:
        raise AssertionError("\n".join(map(_describe, rows)))
    if all(row["finding"] != SuiteVerdict.PASS.value for row in report.rows):
        raise AssertionError(f"no check could be made: {report.reason}")
    return report


def _reference(name: str | None) -> tuple[Any, NearTieReferee | None]:
    """The reference model, and the referee of near-ties in its checkpoint's precision."""
    if name is None:
        return None, None
    from forerun.models.reference import Reference  # noqa: PLC0415  (needs the extra `local`)

    loaded = Reference(name)
    precision = str(loaded.own_dtype).removeprefix("torch.")
    return loaded, NearTieReferee(loaded, [precision, precision])


def _describe(row: dict[str, Any]) -> str:
    evidence = json.dumps(row["evidence"], ensure_ascii=False)[:_MAX_EVIDENCE_CHARACTERS]
    return f"{row['name']}: {row['finding']}: {row['reason']} (reported in {row['reports']})\n  {evidence}"
