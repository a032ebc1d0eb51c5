"""Audits of the zoo, as the command runs them, without the command."""

from __future__ import annotations

from pathlib import Path

from forerun.audit.report import AuditReport
from forerun.audit.sample_journal import Journal
from forerun.audit.sampled.prepare import against_model, against_server
from forerun.audit.sampled.run import SampledAudit, SamplingPlan
from forerun.audit.sampled.sweep import SweepCase
from forerun.audit.sampled.verdict import report
from forerun.servers.endpoint import Endpoint, Prompt
from forerun.types import SamplingParams
from zoo.models import DRAFT, PROMPT, TARGET, TableModel
from zoo.server import Keeper, serving
from zoo.speculation import Defect

SETTINGS = {
    "plain": SamplingParams(),
    "top-k 4": SamplingParams(top_k=4),
    "cool, top-p": SamplingParams(temperature=0.7, top_p=0.9),
    "penalties": SamplingParams(repetition_penalty=1.3, presence_penalty=1.5, frequency_penalty=1.0),
}


def keeper(defect: Defect = Defect.NONE, seed: int = 0) -> Keeper:
    return Keeper(TARGET, DRAFT, defect, seed)


def cases(only: str = "") -> list[SweepCase]:
    return [
        SweepCase(name, sampling, Prompt(ids=PROMPT))
        for name, sampling in SETTINGS.items()
        if not only or name == only
    ]


def audit(
    tested: Keeper,
    folder: Path,
    plan: SamplingPlan,
    *,
    baseline: Keeper | None = None,
    epsilon: float | None = None,
    resume: bool = False,
    only: str = "",
    timeout: float = 30.0,
) -> AuditReport:
    """Hold a keeper's server against the table, or against another's."""
    with serving(tested) as url:
        candidate = Endpoint(url, timeout=timeout, pause=0.01)
        if not resume:
            (folder / "samples.jsonl").unlink(missing_ok=True)
        journal = Journal(folder / "samples.jsonl", {"of": "the zoo"}, resume=resume)
        if baseline is None:
            rows = against_model(cases(only), candidate, TableModel(), plan, epsilon)  # type: ignore[arg-type]
            run = SampledAudit(rows, candidate, None, plan, journal)
            found = report(run, run.run(), {})
        else:
            with serving(baseline) as plain_url:
                plain = Endpoint(plain_url, pause=0.01)
                run = SampledAudit(
                    against_server(cases(only), plain, plan, epsilon), candidate, plain, plan, journal
                )
                found = report(run, run.run(), {})
                plain.close()
        candidate.close()
        journal.close()
        return found
