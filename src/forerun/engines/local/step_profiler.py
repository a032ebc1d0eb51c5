"""Step costs of a transformers model on this machine: from the cache, or profiled at the first start."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from forerun.control import cost_cache
from forerun.control.cost_profiler import CostProfiler
from forerun.control.step_cost import StepCost
from forerun.core.tensors import torch
from forerun.engines.local.startup import logger
from forerun.models.runner import Runner

PROFILED_DRAFT_TOKENS: Final = 16
"""Step costs are profiled up to this many draft tokens per request."""

MAX_PROFILED_ROWS: Final = 512
"""Step costs are profiled up to this many rows in total."""


def load_or_profile_cost(target: Runner, max_draft: int) -> StepCost:
    """The step cost of a model for drafts of up to `max_draft` tokens per request."""
    max_rows = target.cache.num_slots * (1 + min(max_draft, PROFILED_DRAFT_TOKENS))
    max_rows = min(max_rows, MAX_PROFILED_ROWS, target.max_length)
    threads = torch.get_num_threads()
    passes = _LoggedPasses(target.time_forward)
    profiler = CostProfiler(
        cost_cache.cache_key(engine="local", model=target.description, widest=max_rows, threads=threads),
        passes.seconds,
        max_rows,
        block_sizes=target.block_sizes,
        logger=logger,
        on_cpu=target.model.device.type == "cpu",
        confirmation_level=logging.DEBUG,
        progress=passes.log_profiling,
    )
    return profiler.load_or_profile()


class _LoggedPasses:
    """Times forward passes and logs each at DEBUG, for the spinner of a terminal."""

    def __init__(self, time_forward: Callable[[int], float]) -> None:
        self._time_forward = time_forward
        self._num_done = 0

    def seconds(self, rows: int) -> float:
        """The time of a forward pass of `rows` rows."""
        self._num_done += 1
        logger.debug("measuring step costs: forward pass %d, %d rows", self._num_done, rows)
        return self._time_forward(rows)

    @contextmanager
    def log_profiling(self) -> Iterator[None]:
        """Log the start and the end of profiling."""
        logger.info("profiling step costs of the model (once per model, machine and batch size)")
        began, num_before = time.perf_counter(), self._num_done
        yield
        seconds = time.perf_counter() - began
        logger.info("profiled step costs: %d forward passes in %.1f s", self._num_done - num_before, seconds)
