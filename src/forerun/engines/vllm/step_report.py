"""The data that forerun's worker adds to vLLM's output of a step, on the V2 runner.

It is an extra attribute of vLLM's own message, which is pickled with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

_ATTRIBUTE: Final = "forerun_report"


@dataclass(frozen=True, slots=True)
class StepReport:
    """The forward passes of the draft model in an earlier step, and their time."""

    num_draft_passes: int
    draft_seconds: float


def attach_report(model_runner_output: Any, report: StepReport) -> None:
    """Add a report to vLLM's output of a step."""
    setattr(model_runner_output, _ATTRIBUTE, report)


def read_report(model_runner_output: Any) -> StepReport | None:
    """The report in vLLM's output of a step, if there is one."""
    report = getattr(model_runner_output, _ATTRIBUTE, None)
    return report if isinstance(report, StepReport) else None
