"""The plug-in that vLLM loads in each of its processes, through its entry point for plug-ins.

In the front end of a vLLM that runs with forerun's scheduler, it validates the speculation options of
requests, takes predicted outputs, allows min-p and logit biases with speculation, exports forerun's metrics
and bounds the shutdown.
In other processes the patched functions behave as before.
"""

from __future__ import annotations

import os
import sys
from functools import cache, wraps
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.multiprocess import MultiProcessCollector
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.input_processor import InputProcessor

from forerun.engines.vllm import contract
from forerun.engines.vllm.draft_vocabulary import check_draft_model
from forerun.engines.vllm.launch import SCHEDULER, speculation_config
from forerun.engines.vllm.metrics import SpecDecodeCollector
from forerun.engines.vllm.predicted_output import patch_process_inputs, patch_serving
from forerun.engines.vllm.request_options import RequestOptions
from forerun.engines.vllm.runner_log import log_runner, logger
from forerun.engines.vllm.shutdown import bound_shutdown
from forerun.engines.vllm.supported_config import runner_of
from forerun.errors import InvalidRequest

_instances: set[str] = set()
"""The vLLM instances with forerun's scheduler that this process is the front end of."""


def register() -> None:
    """Patch vLLM's front end; vLLM may call this more than once."""
    _patch_llvmlite()
    _patch_input_processor()


@cache
def _patch_input_processor() -> None:
    """Patch it once, however often it is called; a vLLM of another version stays as it is.

    forerun's scheduler reports the difference if it is configured there.
    """
    if not contract.is_supported_version():
        return
    InputProcessor.__init__ = _patch_init(InputProcessor.__init__)
    InputProcessor._validate_params = _patch_validate(InputProcessor._validate_params)
    InputProcessor.process_inputs = patch_process_inputs(InputProcessor.process_inputs)


def _uses_our_scheduler(vllm_config: Any) -> bool:
    """Whether a vLLM runs with forerun's scheduler."""
    chosen = vllm_config.scheduler_config.scheduler_cls
    if isinstance(chosen, type):
        return f"{chosen.__module__}.{chosen.__qualname__}" == SCHEDULER
    return bool(chosen == SCHEDULER)


def _patch_init(stock: Any) -> Any:
    """Let input processors know the drafters, and reject no request because of speculation."""

    @wraps(stock)
    def make(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, vllm_config, *args, **kwargs)
        is_ours = _uses_our_scheduler(vllm_config)
        log_runner(vllm_config, always=is_ours)
        self._forerun_drafters = None
        if is_ours:
            contract.check_input_processor(self)
            contract.check_config(vllm_config)
            if warning := check_draft_model(vllm_config):
                logger.warning("%s", warning)
            self._forerun_runner = runner_of(vllm_config)
            self._forerun_invariant = bool(speculation_config(vllm_config).invariant)
            self._forerun_drafters = speculation_config(vllm_config).names
            self.speculative_config = None
            contract.check_predicted_output()
            patch_serving()
            bound_shutdown()
            _export_metrics(vllm_config.instance_id)

    return make


def _patch_validate(stock: Any) -> Any:
    """Validate the speculation options of a request; errors are returned to the client."""

    @wraps(stock)
    def validate(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        if self._forerun_drafters is not None and isinstance(params, SamplingParams):
            try:
                options = RequestOptions.parse(params.extra_args, self._forerun_drafters)
                options.check_server(self._forerun_runner, invariant=self._forerun_invariant)
            except InvalidRequest as error:
                raise VLLMValidationError(str(error), parameter="vllm_xargs") from error
        return stock(self, params, *args, **kwargs)

    return validate


def _export_metrics(instance: str) -> None:
    """Export the metrics of an instance beside vLLM's own.

    Several web servers share metrics through prometheus_client's multi-process collector, which is patched to
    collect forerun's too.
    """
    if not _instances and "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        REGISTRY.register(SpecDecodeCollector(_instances))
    elif not _instances:
        collect: Any = MultiProcessCollector.collect

        @wraps(collect)
        def collect_all(self: Any) -> Any:
            return [*collect(self), *SpecDecodeCollector(_instances).collect()]

        MultiProcessCollector.collect = collect_all  # type: ignore[method-assign]
    _instances.add(instance)


def _patch_llvmlite() -> None:
    """Make `__dict__` of llvmlite's library wrapper raise AttributeError.

    vLLM's search for kernels reads `__dict__` of every object, and llvmlite, which numba imports, resolves
    any attribute name as a function of its library.
    """
    ffi: Any = sys.modules.get("llvmlite.binding.ffi")
    if ffi is None:
        return
    stock = ffi._lib_wrapper.__getattr__
    if hasattr(stock, "__wrapped__"):  # patched already
        return

    @wraps(stock)
    def find(self: Any, name: str) -> Any:
        if name == "__dict__":
            raise AttributeError(name)
        return stock(self, name)

    ffi._lib_wrapper.__getattr__ = find
