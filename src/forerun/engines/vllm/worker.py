"""vLLM's workers with forerun's sampler, for vLLM's `worker_cls`.

The CUDA worker is untested: it has not been run on a GPU.
"""

from __future__ import annotations

from typing import Any

from vllm.platforms import current_platform
from vllm.v1.worker.cpu_worker import CPUWorker as StockCPUWorker
from vllm.v1.worker.gpu_worker import Worker as StockCUDAWorker

from forerun.engines.vllm import contract
from forerun.engines.vllm.decode_shaped_attention import install_decode_shaped_attention
from forerun.engines.vllm.invariant import install_blocked_linears, split_no_kv
from forerun.engines.vllm.launch import speculation_config
from forerun.engines.vllm.runner_choice import is_cpu_platform
from forerun.engines.vllm.stats import logger
from forerun.engines.vllm.step_profiler import profile_steps
from forerun.engines.vllm.v1.runner import install_sampler, keep_all_logits_processors
from forerun.engines.vllm.v2.runner import install, lookup_speculator
from forerun.engines.vllm.v2.tree_steps import install_trees


class _SpeculativeWorker:
    """The changes to vLLM's workers, on all platforms and for both model runners."""

    model_runner: Any
    vllm_config: Any
    use_v2_model_runner: bool

    @property
    def _is_invariant(self) -> bool:
        """Whether the engine runs in invariant mode; on GPUs the linear layers are vLLM's own."""
        return bool(speculation_config(self.vllm_config).invariant)

    def init_device(self) -> None:
        """Initialize as vLLM does; the V1 runner gets its sampler here."""
        contract.check()
        contract.check_config(self.vllm_config)
        if self._is_invariant and is_cpu_platform():
            split_no_kv()
        if self.use_v2_model_runner:
            with lookup_speculator(self.vllm_config):
                super().init_device()  # type: ignore[misc]
            return
        with keep_all_logits_processors():
            super().init_device()  # type: ignore[misc]
        contract.check_worker(self)
        install_sampler(self.model_runner)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model as vLLM does; the V2 runner has its samplers from then on."""
        super().load_model(*args, **kwargs)  # type: ignore[misc]
        if self._is_invariant and is_cpu_platform():
            contract.check_invariant_model(self.model_runner.model)
            install_blocked_linears(self.model_runner.model, self.vllm_config.model_config.dtype)
        if self.use_v2_model_runner:
            contract.check_worker(self)
            install(self.model_runner)

    def compile_or_warm_up_model(self) -> Any:
        """Warm up as vLLM does, then profile step costs for the scheduler."""
        contract.check_loaded_worker(self)
        if self._is_invariant:
            install_decode_shaped_attention(self.model_runner)
        done = super().compile_or_warm_up_model()  # type: ignore[misc]
        if self.use_v2_model_runner and speculation_config(self.vllm_config).draft_trees:
            install_trees(self.model_runner)
        try:
            profile_steps(self.model_runner)
        except Exception:
            logger.exception("Step-cost profiling failed; falling back to online estimation")
        return done


class CPUWorker(_SpeculativeWorker, StockCPUWorker):  # type: ignore[misc]
    """The worker for CPUs."""


class CUDAWorker(_SpeculativeWorker, StockCUDAWorker):  # type: ignore[misc]
    """The worker for GPUs; untested."""


Worker = CPUWorker if current_platform.is_cpu() else CUDAWorker
"""The worker for this platform."""
