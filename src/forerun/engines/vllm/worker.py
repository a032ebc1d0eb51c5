"""vLLM's workers with our sampler in them. `worker_cls` takes the path of one of these classes.

The CUDA worker has never been run: no GPU was at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker as StockCPUWorker
from vllm.v1.worker.gpu_worker import Worker as StockWorker

from forerun.engines.vllm.contract import check
from forerun.engines.vllm.sampler import Sampler


def install(runner: Any) -> None:
    """Put our sampler where vLLM's rejection sampler is, if the runner speculates at all.

    Also keeps the generators of requests that are still reading their prompt out of sampling. vLLM draws
    for them, drops the token and turns the generator back, which a generator on a CPU cannot do.
    """
    if getattr(runner, "rejection_sampler", None) is not None:
        runner.rejection_sampler = Sampler(runner.sampler, runner)
    for name in ("_sample", "_bookkeeping_sync"):
        setattr(runner, name, _without_readers(runner, getattr(runner, name)))


def _without_readers(runner: Any, step: Callable[..., Any]) -> Callable[..., Any]:
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


class CPUWorker(StockCPUWorker):  # type: ignore[misc]
    """The worker for CPUs."""

    def init_device(self) -> None:
        """As vLLM does it, then with our sampler."""
        check()
        super().init_device()
        install(self.model_runner)


class CUDAWorker(StockWorker):  # type: ignore[misc]
    """The worker for GPUs. Never run."""

    def init_device(self) -> None:
        """As vLLM does it, then with our sampler."""
        check()
        super().init_device()
        install(self.model_runner)
