"""Step costs of a transformers model on this machine: from the cache, or profiled at the first start."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from forerun.control import cost_cache
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
    key = cost_cache.cache_key(engine="local", model=target.description, widest=max_rows, threads=threads)
    cost = cost_cache.load(key)
    if cost is None:
        cost = profile_step_cost(target.time_forward, max_rows, target.block_sizes)
        cost_cache.save(key, cost)
    return cost


def profile_step_cost(
    seconds: Callable[[int], float], max_rows: int, block_sizes: Sequence[int] = ()
) -> StepCost:
    """Measure the step-cost curve up to `max_rows` rows; `seconds` times one forward pass of that many.

    An engine that computes rows in blocks gives their sizes.
    """
    began = time.perf_counter()
    num_forward_passes = 0

    def timed(rows: int) -> float:
        nonlocal num_forward_passes
        num_forward_passes += 1
        logger.debug("profiling step costs: forward pass %d, %d rows", num_forward_passes, rows)
        return seconds(rows)

    logger.info("profiling step costs of the model (once per model, machine and batch size)")
    cost = StepCost.profile(timed, max_rows, block_sizes=block_sizes)
    logger.info(
        "profiled step costs: %d forward passes of up to %d rows in %.1f s",
        num_forward_passes,
        int(cost.rows[-1]),
        time.perf_counter() - began,
    )
    return cost
