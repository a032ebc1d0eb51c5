"""Leaves out the transfer of draft tokens from the worker, in engines whose scheduler looks them up.

After every step of an engine with speculation and without async scheduling, vLLM asks the worker for draft
tokens: one more exchange of messages per step. Without a draft model forerun's worker has none.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import Any, Final

from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

_instances: Final[set[str]] = set()
"""The vLLM instances of this process whose workers have no draft tokens."""


def leave_out(vllm_config: Any) -> None:
    """Ask the worker of this configuration for draft tokens no more."""
    _patch_executors()
    _instances.add(vllm_config.instance_id)


@cache
def _patch_executors() -> None:
    """Patch them once, however many engines the process has."""
    for executor in (Executor, MultiprocExecutor, UniProcExecutor):
        executor.take_draft_token_ids = _patch(executor.take_draft_token_ids)


def _patch(stock: Any) -> Any:
    @wraps(stock)
    def take_draft_token_ids(self: Any) -> Any:
        return None if self.vllm_config.instance_id in _instances else stock(self)

    return take_draft_token_ids
