"""The data that forerun's worker adds to vLLM's output of a step.

It is an extra attribute of vLLM's own message, which is pickled with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from forerun.engines.top_token_rows import TopRows
from forerun.types import Float32Array
from forerun.types.top_tokens import Int32Array

_ATTRIBUTE: Final = "forerun_report"


@dataclass(frozen=True, slots=True)
class DraftTime:
    """The forward passes of the draft model in an earlier step, and their time."""

    num_passes: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class TopTokenReport:
    """The likeliest next tokens at rows of a step: tokens and probabilities, [rows, number].

    The rows of request `names[i]` end at `ends[i]`, those of the first one begin at 0.
    """

    names: tuple[str, ...]
    ends: tuple[int, ...]
    tokens: Int32Array
    probs: Float32Array

    def by_request(self) -> dict[str, TopRows]:
        """Tokens and probabilities of each request, in the order of its rows."""
        starts = (0, *self.ends)
        return {
            name: (self.tokens[start:end], self.probs[start:end])
            for name, start, end in zip(self.names, starts, self.ends, strict=False)
        }


@dataclass(frozen=True, slots=True)
class StepReport:
    """What the worker knows and the scheduler does not; None where there is nothing to report."""

    draft_time: DraftTime | None = None
    top_tokens: TopTokenReport | None = None


def attach_report(model_runner_output: Any, report: StepReport) -> None:
    """Add a report to vLLM's output of a step, unless it is empty."""
    if report.draft_time is not None or report.top_tokens is not None:
        setattr(model_runner_output, _ATTRIBUTE, report)


def read_report(model_runner_output: Any) -> StepReport:
    """The report in vLLM's output of a step; empty if there is none."""
    report = getattr(model_runner_output, _ATTRIBUTE, None)
    return report if isinstance(report, StepReport) else StepReport()
