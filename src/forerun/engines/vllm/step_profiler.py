"""What vLLM's steps cost, measured by its worker before the first request and left for the scheduler to find.

Scheduler and worker may be different processes, so the curve goes through the file that keeps it for the next
start. Where they do not share a disk the scheduler begins with a typical curve and learns from its steps.
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

from forerun.control import cost_cache
from forerun.control.step_cost import REPEATS, StepCost, sizes
from forerun.engines.vllm.launch import cores, settings_of
from forerun.engines.vllm.startup_log import log_progress
from forerun.engines.vllm.stats import logger

DEEP: Final = 16
WIDEST: Final = 1024
"""Steps are measured with up to so many guesses for everybody, and up to so many rows in all."""

_CORES: Final = ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU")
"""What tells a vLLM on CPUs which cores are its own; all its processes see the same."""


def find(vllm_config: Any) -> StepCost | None:
    """The curve of a vLLM like this one on this machine, if it was measured."""
    return cost_cache.load(_name(vllm_config))


def keep(vllm_config: Any, cost: StepCost) -> Path | None:
    """Cache a curve for the next start; returns the file, None if it cannot be written."""
    return cost_cache.save(_name(vllm_config), cost)


def measure(runner: Any) -> None:
    """Profile the step costs of a runner and cache the curve; a single worker uses a cached one if it can.

    Ranks that work together all measure: they must agree on what they run.
    """
    config = runner.vllm_config
    if config.speculative_config is None or not settings_of(config).adaptive:
        return
    alone = config.parallel_config.world_size_across_dp == 1
    if alone and find(config) is not None:
        logger.info("step costs: read from %s", cost_cache.path_of(_name(config)))
        return
    most = min(config.scheduler_config.max_num_seqs * (1 + DEEP), runner.max_num_tokens, WIDEST)
    passes = _Passes(runner)
    note = (
        f"profiling forward passes of 1 to {most} rows, {len(sizes(most))} sizes, each up to {REPEATS}"
        " times; takes about 10 s, and the result is cached for the next start"
    )
    with _without_draft(runner), log_progress("step costs", note, passes.progress):
        cost = StepCost.profile(passes.seconds, most, by_clock=alone)
    path = keep(config, cost)
    where = f"cached in {path}" if path else "not cached: the cache directory is not writable"
    logger.info("step costs: %s; %s", _summary(cost), where)


class _Passes:
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
        """The end of a log line while profiling lasts."""
        return f", {self.num_done} forward passes done, {self.rows} rows now"


def _summary(cost: StepCost) -> str:
    """The ends of the curve, and a point between them."""
    curve = cost.to_dict()["bands"]["0"]
    at = (0, len(curve) // 2, -1)
    return ", ".join(f"{cost.rows[place]:.0f} rows {1e3 * curve[place]:.1f} ms" for place in at)


@contextmanager
def _without_draft(runner: Any) -> Iterator[None]:
    """While this lasts, dummy runs leave out the draft model: its time is measured apart."""
    drafter: Any = getattr(runner, "drafter", None)
    if not hasattr(drafter, "dummy_run"):
        yield
        return
    drafter.dummy_run = lambda *_, **__: None
    try:
        yield
    finally:
        del drafter.dummy_run


@torch.inference_mode()
def _seconds(runner: Any, rows: int) -> float:
    """The seconds of a step of so many rows, each of which says a token."""
    _wait()
    began = time.perf_counter()
    hidden, _ = runner._dummy_run(rows, skip_eplb=True)
    logits = runner.model.compute_logits(hidden[:rows])
    if logits is not None:
        logits.argmax(dim=-1)
    _wait()
    return time.perf_counter() - began


def _wait() -> None:
    """Until the device has done what it was told."""
    if current_platform.is_cuda_alike():
        torch.cuda.synchronize()


def _name(vllm_config: Any) -> str:
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    return cost_cache.cache_key(
        engine=f"vllm {vllm.__version__}",
        model=model.model,
        dtype=model.dtype,
        quantization=model.quantization,
        eager=model.enforce_eager,
        ranks=(parallel.tensor_parallel_size, parallel.pipeline_parallel_size),
        seqs=vllm_config.scheduler_config.max_num_seqs,
        device=current_platform.get_device_name(),
        cores=[cores(), *(os.environ.get(name, "") for name in _CORES)],
    )
