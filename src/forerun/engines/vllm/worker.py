"""vLLM's workers with our sampler in them. `worker_cls` takes the path of `Worker`.

The CUDA worker has never been run: no GPU was at hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import wraps
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.cpu_worker import CPUWorker as StockCPUWorker
from vllm.v1.worker.gpu_worker import Worker as StockCUDAWorker

from forerun.engines.vllm.contract import check, check_config
from forerun.engines.vllm.launch import settings_of
from forerun.engines.vllm.sampler import SpeculativeSampler
from forerun.engines.vllm.stats import logger
from forerun.engines.vllm.step_plan import plan_of
from forerun.engines.vllm.step_profiler import measure
from forerun.errors import UnsupportedEngine


def install(runner: Any) -> None:
    """Put our sampler where vLLM's rejection sampler is, if the runner speculates at all.

    Also keeps the generators of requests that are still reading their prompt out of sampling. vLLM draws
    for them, drops the token and turns the generator back, which a generator on a CPU cannot do.
    """
    if not hasattr(runner, "_sample"):
        raise UnsupportedEngine(
            "forerun works with vLLM's first model runner: set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    for name in ("_sample", "_bookkeeping_sync"):
        setattr(runner, name, _mask_prefill_generators(runner, getattr(runner, name)))
    if getattr(runner, "rejection_sampler", None) is None:
        return
    sampler = SpeculativeSampler(runner.sampler, runner, settings_of(runner.vllm_config))
    runner.rejection_sampler = sampler
    runner._get_spec_decode_draft_probs = lambda _: None  # its rows have no place for guesses from elsewhere
    _capture_plan(runner, sampler)
    if runner.speculative_config.uses_draft_model():
        _time_drafts(runner)


def _mask_prefill_generators(runner: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    """A part of a step that sees no generators of requests that are still reading their prompt."""

    @wraps(step)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        batch = runner.input_batch
        reading = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        held = {at: batch.generators.pop(at) for at in reading if at in batch.generators}
        try:
            return step(*args, **kwargs)
        finally:
            batch.generators.update(held)

    return wrapped


def _capture_plan(runner: Any, sampler: SpeculativeSampler) -> None:
    """Let the sampler know what the scheduler planned with every step."""
    execute = runner.execute_model

    @wraps(execute)
    def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        sampler.plan = plan_of(scheduler_output)
        return execute(scheduler_output, *args, **kwargs)

    runner.execute_model = execute_model


def _time_drafts(runner: Any) -> None:
    """Tell the scheduler how long the draft model takes, and leave it alone where nobody wants it.

    vLLM runs it even to draw nothing, so that its cache stays complete; but a request that does not want
    the draft model never will.
    """
    propose, take = runner.propose_draft_token_ids, runner.take_draft_token_ids
    seconds: float | None = None  # since drafts were taken last

    @wraps(propose)
    def propose_draft_token_ids(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal seconds
        if scheduler_output.num_spec_tokens_to_schedule == 0:
            seconds = 0.0
            runner._draft_probs = runner._draft_prob_req_ids = None
            return torch.empty(runner.input_batch.num_reqs, 0, dtype=torch.int64, device=runner.device)
        began = time.perf_counter()
        drafts = propose(scheduler_output, *args, **kwargs)
        seconds = time.perf_counter() - began
        return drafts

    @wraps(take)
    def take_draft_token_ids() -> Any:
        nonlocal seconds
        drafts = take()
        took, seconds = seconds, None
        if drafts is None or took is None:
            return None  # a text near its end: vLLM makes up guesses for everybody instead of asking
        drafts.seconds = took
        return drafts

    runner.propose_draft_token_ids = propose_draft_token_ids
    runner.take_draft_token_ids = take_draft_token_ids


@contextmanager
def _all_processors() -> Iterator[None]:
    """While this lasts, runners are made with all of vLLM's logits processors.

    With speculation vLLM leaves out min-p, biases and the user's own: its rejection sampler cannot apply
    them. Ours asks plain sampling, which does.
    """
    build = gpu_model_runner.build_logitsprocs

    def build_all(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        without = copy(vllm_config)
        without.speculative_config = None
        return build(without, *args, **kwargs)

    gpu_model_runner.build_logitsprocs = build_all
    try:
        yield
    finally:
        gpu_model_runner.build_logitsprocs = build


class _Ours:
    """What both workers do with vLLM's."""

    model_runner: Any
    vllm_config: Any

    def init_device(self) -> None:
        """As vLLM does it, then with our sampler."""
        check()
        check_config(self.vllm_config)
        with _all_processors():
            super().init_device()  # type: ignore[misc]
        install(self.model_runner)

    def compile_or_warm_up_model(self) -> Any:
        """As vLLM does it, then measured: the scheduler wants to know what steps cost."""
        done = super().compile_or_warm_up_model()  # type: ignore[misc]
        try:
            measure(self.model_runner)
        except Exception:
            logger.exception("step costs: profiling failed; falling back to online estimation")
        return done


class CPUWorker(_Ours, StockCPUWorker):  # type: ignore[misc]
    """The worker for CPUs."""


class CUDAWorker(_Ours, StockCUDAWorker):  # type: ignore[misc]
    """The worker for GPUs. Never run."""


Worker = CPUWorker if current_platform.is_cpu() else CUDAWorker
"""The worker for this machine."""
