"""What vLLM loads in every one of its processes, through its entry points for plugins.

In the web server, and only for a vLLM that runs with our scheduler: what a request asks of speculation is
checked, min-p and biases are let through, our counts stand beside vLLM's, and stopping is bounded. Elsewhere
what is wrapped passes everything on.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.multiprocess import MultiProcessCollector
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.input_processor import InputProcessor

from forerun.engines.vllm.launch import SCHEDULER, settings_of
from forerun.engines.vllm.metrics import Collector
from forerun.engines.vllm.request_options import RequestOptions
from forerun.engines.vllm.shutdown import bound_shutdown
from forerun.errors import InvalidRequest

_instances: set[str] = set()
"""The vLLMs with our scheduler that this process is the front end of."""


def register() -> None:
    """Called by vLLM, possibly more than once."""
    _mend_llvmlite()
    if getattr(InputProcessor, "_forerun", False):
        return
    InputProcessor._forerun = True
    InputProcessor.__init__ = _patch_init(InputProcessor.__init__)
    InputProcessor._validate_params = _patch_validate(InputProcessor._validate_params)


def _is_ours(vllm_config: Any) -> bool:
    """Whether a vLLM runs with our scheduler."""
    chosen = vllm_config.scheduler_config.scheduler_cls
    return chosen == SCHEDULER if isinstance(chosen, str) else _path(chosen) == SCHEDULER


def _path(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}"


def _patch_init(stock: Any) -> Any:
    """Processors of requests that know who can guess, and that refuse nothing because of speculation."""

    @wraps(stock)
    def make(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, vllm_config, *args, **kwargs)
        self._forerun_drafters = None
        if _is_ours(vllm_config):
            self._forerun_drafters = settings_of(vllm_config).names
            self.speculative_config = None
            bound_shutdown()
            _show_counts(vllm_config.instance_id)

    return make


def _patch_validate(stock: Any) -> Any:
    """The check of a request's settings; what it asks of us in vain is told to whoever sent it."""

    @wraps(stock)
    def validate(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        if self._forerun_drafters is not None:
            try:
                RequestOptions.parse(getattr(params, "extra_args", None), self._forerun_drafters)
            except InvalidRequest as error:
                raise VLLMValidationError(str(error), parameter="vllm_xargs") from error
        return stock(self, params, *args, **kwargs)

    return validate


def _show_counts(instance: str) -> None:
    """Let this process's metrics have our counts of a vLLM beside vLLM's own.

    Several web servers share theirs through files that prometheus_client collects; it collects ours too.
    """
    if not _instances and "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        REGISTRY.register(Collector(_instances))
    elif not _instances:
        collect: Any = MultiProcessCollector.collect

        @wraps(collect)
        def collect_all(self: Any) -> Any:
            return [*collect(self), *Collector(_instances).collect()]

        MultiProcessCollector.collect = collect_all  # type: ignore[method-assign]
    _instances.add(instance)


def _mend_llvmlite() -> None:
    """Keep vLLM's search for kernels, which reads `__dict__` of everything there is, from falling over
    llvmlite's library, which has a function for every name. It would, once numba is imported.
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    stock = getattr(getattr(ffi, "_lib_wrapper", None), "__getattr__", None)
    if stock is None or hasattr(stock, "__wrapped__"):
        return

    @wraps(stock)
    def find(self: Any, name: str) -> Any:
        if name == "__dict__":
            raise AttributeError(name)
        return stock(self, name)

    ffi._lib_wrapper.__getattr__ = find  # type: ignore[union-attr]
