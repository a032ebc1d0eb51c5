"""The check of sampled output without seeds: its distribution, by betting, on few samples."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from forerun.audit.report import AuditVerdict
from forerun.audit.sample_journal import SampleJournal
from forerun.audit.sampled.preparation import against_model, against_server
from forerun.audit.sampled.run import SampledAudit, SamplingPlan
from forerun.audit.sampled.sweep import combine
from forerun.audit.sampled.verdict import report
from forerun.audit.suite.finding import Finding, failed, not_applicable, passed, undecided
from forerun.audit.suite.session import Session
from forerun.types import SamplingParams

ERROR_RATE: Final = 0.001
"""The probability that a server without a fault fails; low, because a suite runs in every build."""

SETTINGS: Final = {
    "temperature 1": SamplingParams(),
    "top-k 4": SamplingParams(top_k=4),
    "temperature 0.7, top-p 0.9": SamplingParams(temperature=0.7, top_p=0.9),
    "penalties": SamplingParams(repetition_penalty=1.3, presence_penalty=1.5, frequency_penalty=1.0),
}
NUM_SAMPLES: Final = 128
NUM_SAMPLES_THOROUGH: Final = 6144


def distribution(session: Session) -> Finding:
    """Sampled tokens follow the distribution of decoding without speculation."""
    if session.baseline is None and session.reference is None:
        return not_applicable("testing a distribution needs --baseline or --reference")
    plan = SamplingPlan(
        num_samples=NUM_SAMPLES_THOROUGH if session.thorough else NUM_SAMPLES,
        max_samples=16,  # bounding the distance takes longer: `forerun audit sampled` does
        error_rate=ERROR_RATE,
        stop_at_e_value=2 / ERROR_RATE,
        concurrency=min(session.concurrency, 8),
    )
    cases = combine(SETTINGS, list(session.prompts), all_prompts=False)
    if session.reference is not None:
        rows = against_model(cases, session.candidate, session.reference, plan)
        baseline = None
    else:
        assert session.baseline is not None
        rows, baseline = against_server(cases, session.baseline, plan), session.baseline
    with tempfile.TemporaryDirectory() as folder:
        journal = SampleJournal(Path(folder) / "samples.jsonl", {})
        audit = SampledAudit(rows, session.candidate, baseline, plan, journal)
        found = report(audit, audit.run(), {})
        journal.close()
    if found.verdict is AuditVerdict.DIFFERENT:
        worst = [row for row in found.rows if row["e_value"] and row["e_value"] > 1]
        keys = ("name", "num_samples", "e_value", "alternative")
        return failed(found.reason, [{key: row[key] for key in keys} for row in worst])
    if found.verdict is AuditVerdict.NO_VERDICT:
        return undecided(found.reason)
    return passed(f"{found.num_samples} samples of {len(cases)} settings follow the expected distribution")
