"""The data that forerun's scheduler adds to vLLM's plan of a step.

It is an extra attribute of vLLM's own message, which is pickled with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from forerun.drafters.static_table import StaticTable
from forerun.engines.vllm.sparse_q import SparseQ
from forerun.types import Tokens

PLACEHOLDER: Final = -1
"""The token id of a draft token that the worker knows or looks up, and of no output token."""

_ATTRIBUTE: Final = "forerun_plan"


@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """The tokens of a request from position `start` on, for drafters in the worker.

    With `start` 0, the rest describes the request.
    """

    start: int
    tokens: Sequence[int]
    num_prompt: int = 0
    salt: str | None = None
    drafters: tuple[str, ...] | None = None
    prediction: Tokens | None = None


@dataclass(frozen=True, slots=True)
class DraftingPlan:
    """The requests for which the worker looks up drafts in a step.

    The tokens include the output of every step up to the number `last_processed`; later steps are in flight.
    Drafters in the worker drop the requests in `finished`. Requests with a draft of the draft model are left
    out. A new `static_table` is used from this step on; it travels here so that all ranks use it at once.
    """

    last_processed: int
    requests: Mapping[str, RequestUpdate]
    finished: Mapping[str, RequestUpdate] = field(default_factory=dict)
    static_table: StaticTable | None = None


@dataclass(frozen=True, slots=True)
class SidePath:
    """A path of a request's draft tree that is verified beside the request's own chain.

    `number` counts the paths of the request from 1; its own chain is path 0.
    """

    request_id: str
    number: int
    tokens: tuple[int, ...]

    @property
    def name(self) -> str:
        """A name for the rows of the path, which is no request id."""
        return f"{self.request_id}\0{self.number}"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The number of a step, and the ids of the requests whose draft tokens the draft model sampled.

    The worker must not infer the latter: a looked-up draft token may equal the sampled one, and verifying it
    against q in just that case would condition on its value and bias the output distribution.
    Their q stays in the worker; `q` has that of chains which a drafter sampled in the scheduler.
    `drafting` is for drafters in the worker, and None in a step that plans no draft tokens from them. For the
    requests of `wants_logits` the worker reports the likeliest next tokens at their rows. `side_paths` are
    the paths of draft trees; their order is that of their scratch blocks.
    """

    number: int | None = None
    sampled: frozenset[str] = frozenset()
    q: Mapping[str, SparseQ] = field(default_factory=dict)
    drafting: DraftingPlan | None = None
    wants_logits: frozenset[str] = frozenset()
    side_paths: tuple[SidePath, ...] = ()


def attach_plan(scheduler_output: Any, plan: StepPlan) -> None:
    """Add a plan to vLLM's scheduler output."""
    setattr(scheduler_output, _ATTRIBUTE, plan)


def read_plan(scheduler_output: Any) -> StepPlan:
    """The plan in vLLM's scheduler output; empty if there is none."""
    plan = getattr(scheduler_output, _ATTRIBUTE, None)
    return plan if isinstance(plan, StepPlan) else StepPlan()


def with_side_paths(scheduler_output: Any, paths: Sequence[SidePath]) -> Any:
    """vLLM's scheduler output with the rows of side paths, under their own names; it has no plan."""
    rows = {path.name: 1 + len(path.tokens) for path in paths}
    drafts = {path.name: [*path.tokens] for path in paths}
    return replace(
        scheduler_output,
        num_scheduled_tokens={**scheduler_output.num_scheduled_tokens, **rows},
        scheduled_spec_decode_tokens={**scheduler_output.scheduled_spec_decode_tokens, **drafts},
        total_num_scheduled_tokens=scheduler_output.total_num_scheduled_tokens + sum(rows.values()),
    )
