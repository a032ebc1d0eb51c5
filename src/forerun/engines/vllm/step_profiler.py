"""Profiling of step costs in vLLM's worker, before the first request.

Scheduler and worker may be different processes, so the scheduler reads the curve from the cache file. Where
they do not share a disk, the scheduler starts from the default curve and updates it from its steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import vllm
from vllm.platforms import current_platform
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from forerun.control import cost_cache
from forerun.control.cost_profiler import CostProfiler
from forerun.control.cost_sweeps import REPEATS, profile_sizes
from forerun.control.step_cost import StepCost
from forerun.engines.vllm.launch import speculation_config, visible_cores
from forerun.engines.vllm.startup_log import log_progress
from forerun.engines.vllm.stats import logger

MAX_PROFILED_DRAFT: Final = 16
MAX_PROFILED_ROWS: Final = 1024
"""Maximum draft tokens per request and maximum rows of a profiled step."""

_CORE_BINDING: Final = ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU")
"""Environment variables that bind vLLM to cores on CPUs; they are equal in all of its processes."""


def load_cost(vllm_config: Any) -> StepCost | None:
    """The cached curve of this configuration on this machine, if there is one."""
    return cost_cache.load(_cache_key(vllm_config))


def save_cost(vllm_config: Any, cost: StepCost) -> Path | None:
    """Cache a curve that steps have corrected; returns the file, None if nothing was written."""
    return cost_cache.save_corrected(_cache_key(vllm_config), cost)


def profile_steps(runner: Any) -> None:
    """Profile the step costs of a runner and cache the curve; a single worker checks a cached curve instead.

    With several ranks each of them profiles, because they have to run the same forward passes.
    """
    config = runner.vllm_config
    if config.speculative_config is None or not speculation_config(config).adaptive:
        return
    max_rows = min(
        config.scheduler_config.max_num_seqs * (1 + MAX_PROFILED_DRAFT),
        runner.max_num_tokens,
        MAX_PROFILED_ROWS,
    )
    passes = _TimedPasses(runner)
    note = (
        f"forward passes of 1 to {max_rows} rows, {len(profile_sizes(max_rows))} sizes, each up to"
        f" {REPEATS} times; takes about 10 s, and the result is cached for the next start"
    )
    profiler = CostProfiler(
        _cache_key(config),
        passes.seconds,
        max_rows,
        logger=logger,
        on_cpu=current_platform.is_cpu(),
        progress=lambda: log_progress("Profiling step costs", note, passes.progress),
    )
    with _without_draft_model(runner):
        if config.parallel_config.world_size_across_dp == 1:
            profiler.load_or_profile()
        else:
            profiler.profile(time_limited=False)


class _TimedPasses:
    """Times forward passes of a runner, and counts them for the log."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.num_done = 0
        self.rows = 0

    def seconds(self, rows: int) -> float:
        """The time of a forward pass of `rows` rows."""
        self.rows = rows
        seconds = _seconds(self.runner, rows)
        self.num_done += 1
        return seconds

    def progress(self) -> str:
        """The end of a progress line in the log."""
        return f", {self.num_done} forward passes done, {self.rows} rows now"


@contextmanager
def _without_draft_model(runner: Any) -> Iterator[None]:
    """Within this block, dummy runs skip the draft model, whose time is measured separately."""
    if runner.vllm_config.use_v2_model_runner:
        speculator, runner.speculator = runner.speculator, None
        try:
            yield
        finally:
            runner.speculator = speculator
        return
    drafter: Any = runner.drafter
    if not isinstance(drafter, SpecDecodeBaseProposer):
        yield
        return
    drafter.dummy_run = lambda *_, **__: None
    try:
        yield
    finally:
        del drafter.dummy_run


@torch.inference_mode()
def _seconds(runner: Any, rows: int) -> float:
    """Seconds of a forward pass of `rows` rows, with logits and argmax of each."""
    _synchronize()
    began = time.perf_counter()
    hidden, _ = runner._dummy_run(rows, skip_eplb=True)
    logits = runner.model.compute_logits(hidden[:rows])
    if logits is not None:
        logits.argmax(dim=-1)
    _synchronize()
    return time.perf_counter() - began


def _synchronize() -> None:
    """Synchronize with the device."""
    if current_platform.is_cuda_alike():
        torch.cuda.synchronize()


def _cache_key(vllm_config: Any) -> str:
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    mode = {"invariant": True} if speculation_config(vllm_config).invariant else {}
    return cost_cache.cache_key(
        engine=f"vllm {vllm.__version__}",
        model=model.model,
        dtype=model.dtype,
        quantization=model.quantization,
        eager=model.enforce_eager,
        runner="v2" if vllm_config.use_v2_model_runner else "v1",
        ranks=(parallel.tensor_parallel_size, parallel.pipeline_parallel_size),
        seqs=vllm_config.scheduler_config.max_num_seqs,
        device=current_platform.get_device_name(),
        cores=[visible_cores(), *(os.environ.get(name, "") for name in _CORE_BINDING)],
        **mode,
    )
