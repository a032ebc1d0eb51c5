"""vLLM's workers with our sampler in them. `worker_cls` takes the path of one of these classes.

The CUDA worker has never been run: no GPU was at hand.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker as StockCPUWorker
from vllm.v1.worker.gpu_worker import Worker as StockWorker

from forerun.engines.vllm.contract import check
from forerun.engines.vllm.sampler import Sampler


def install(runner: Any) -> None:
    """Put our sampler where vLLM's rejection sampler is, if the runner speculates at all."""
    if getattr(runner, "rejection_sampler", None) is not None:
        runner.rejection_sampler = Sampler(runner.sampler, runner)


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
