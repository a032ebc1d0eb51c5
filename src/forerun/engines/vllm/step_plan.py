"""The data that forerun's scheduler adds to vLLM's plan of a step.

It is an extra attribute of vLLM's own message, which is pickled with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

_ATTRIBUTE: Final = "forerun_plan"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The number of a step, and the ids of the requests whose draft tokens the draft model sampled.

    The worker must not infer the latter: a looked-up draft token may equal the sampled one, and verifying it
    against q in just that case would condition on its value and bias the output distribution.
    """

    number: int | None = None
    sampled: frozenset[str] = frozenset()


def attach_plan(scheduler_output: Any, plan: StepPlan) -> None:
    """Add a plan to vLLM's scheduler output."""
    setattr(scheduler_output, _ATTRIBUTE, plan)


def read_plan(scheduler_output: Any) -> StepPlan:
    """The plan in vLLM's scheduler output; empty if there is none."""
    plan = getattr(scheduler_output, _ATTRIBUTE, None)
    return plan if isinstance(plan, StepPlan) else StepPlan()
