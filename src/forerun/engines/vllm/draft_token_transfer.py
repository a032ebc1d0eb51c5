"""Leaves out the transfer of draft tokens from the worker, in engines whose scheduler looks them up.

After every step of an engine with speculation and without async scheduling, vLLM asks the worker for draft
tokens: one more exchange of messages per step. Without a draft model forerun's worker has none.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import Any, Final
from weakref import WeakSet

from vllm.v1.engine.core import EngineCore

_schedulers: Final[WeakSet[Any]] = WeakSet()
"""The schedulers of this process whose workers have no draft tokens."""


def leave_out(scheduler: Any) -> None:
    """Ask the worker of a scheduler's engine for draft tokens no more."""
    _patch_engine()
    _schedulers.add(scheduler)


@cache
def _patch_engine() -> None:
    """Patch it once, however many engines the process has."""
    EngineCore.post_step = _patch(EngineCore.post_step)


def _patch(stock: Any) -> Any:
    @wraps(stock)
    def post_step(self: Any, model_executed: bool) -> None:
        if self.scheduler in _schedulers:
            self.check_for_draft_tokens = False
        stock(self, model_executed)

    return post_step
