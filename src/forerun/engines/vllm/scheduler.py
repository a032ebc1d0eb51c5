"""The scheduler that vLLM's `scheduler_cls` names: sync or async, as vLLM is configured."""

from __future__ import annotations

from typing import Any

from forerun.engines.vllm.async_scheduler import AsyncScheduler
from forerun.engines.vllm.sync_scheduler import SyncScheduler


class Scheduler:
    """Creates the scheduler for a configuration."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """An `AsyncScheduler` with async scheduling, otherwise a `SyncScheduler`."""
        made = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else SyncScheduler
        return made(vllm_config, *args, **kwargs)
