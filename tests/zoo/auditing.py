"""Runs sampled audits of zoo servers without the command line."""

from __future__ import annotations

from pathlib import Path

from forerun.audit.report import AuditReport
from forerun.audit.sample_journal import SampleJournal
from forerun.audit.sampled.preparation import against_model, against_server
from forerun.audit.sampled.run import SampledAudit, SamplingPlan
from forerun.audit.sampled.sweep import SweepCase
from forerun.audit.sampled.verdict import report
from forerun.servers.completions import Prompt
from forerun.servers.endpoint import Endpoint
from forerun.types import SamplingParams
from zoo.models import DRAFT, PROMPT, TARGET, TableModel
from zoo.server import ZooServer, run_server
from zoo.speculation import Defect

SETTINGS = {
    "temperature 1": SamplingParams(),
    "top-k 4": SamplingParams(top_k=4),
    "cool, top-p": SamplingParams(temperature=0.7, top_p=0.9),
    "penalties": SamplingParams(repetition_penalty=1.3, presence_penalty=1.5, frequency_penalty=1.0),
}


def zoo_server(defect: Defect = Defect.NONE, seed: int = 0) -> ZooServer:
    return ZooServer(TARGET, DRAFT, defect, seed)


def cases(only: str = "") -> list[SweepCase]:
    return [
        SweepCase(name, sampling, Prompt(ids=PROMPT))
        for name, sampling in SETTINGS.items()
        if not only or name == only
    ]


def audit(
    candidate_server: ZooServer,
    folder: Path,
    plan: SamplingPlan,
    *,
    baseline: ZooServer | None = None,
    epsilon: float | None = None,
    resume: bool = False,
    only: str = "",
    timeout: float = 30.0,
) -> AuditReport:
    """Audit a zoo server against the reference table, or against a baseline server."""
    with run_server(candidate_server) as url:
        candidate = Endpoint(url, timeout=timeout, pause=0.01)
        if not resume:
            (folder / "samples.jsonl").unlink(missing_ok=True)
        journal = SampleJournal(folder / "samples.jsonl", {"servers": "zoo"}, resume=resume)
        if baseline is None:
            rows = against_model(cases(only), candidate, TableModel(), plan, epsilon)  # type: ignore[arg-type]
            run = SampledAudit(rows, candidate, None, plan, journal)
            found = report(run, run.run(), {})
        else:
            with run_server(baseline) as baseline_url:
                other = Endpoint(baseline_url, pause=0.01)
                rows = against_server(cases(only), other, plan, epsilon)
                run = SampledAudit(rows, candidate, other, plan, journal)
                found = report(run, run.run(), {})
                other.close()
        candidate.close()
        journal.close()
        return found
