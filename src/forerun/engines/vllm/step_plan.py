"""What the scheduler tells the workers beside vLLM's own plan of a step, and what they tell it back.

Both ride on vLLM's messages as an attribute more: they are pickled as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

_NAME: Final = "forerun_plan"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Whose guesses in this step were drawn by the draft model.

    Who was drawn for has to be said: guesses that were looked up may happen to be what was drawn, and to
    judge them by the draw's q just then would be to look at values.
    """

    sampled: frozenset[str] = frozenset()


def attach(scheduler_output: Any, plan: StepPlan) -> None:
    """Send a plan along with a step."""
    setattr(scheduler_output, _NAME, plan)


def plan_of(scheduler_output: Any) -> StepPlan:
    """The plan that came with a step."""
    plan = getattr(scheduler_output, _NAME, None)
    return plan if isinstance(plan, StepPlan) else StepPlan()
