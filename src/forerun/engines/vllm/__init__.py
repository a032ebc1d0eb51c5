"""The vLLM plug-in; the only package that imports vllm.

- `LookupProposer`: a lookup drafter for stock vLLM through its `custom_class` hook; replaces nothing
- `scheduler.Scheduler`: drafts where requests and salts are known; the worker then has a `NullProposer`
- `worker.CPUWorker`, `worker.CUDAWorker`: run `sampler.SpeculativeSampler`, which verifies losslessly
- `contract`: every private name of vLLM and its libraries that the plug-in uses, and the checks of it
"""

import warnings
from typing import Any

from forerun.engines.vllm.launch import log_deprecation
from forerun.engines.vllm.proposer import LookupProposer, NullProposer

__all__ = ["LookupProposer", "NullProposer"]

_RENAMED = {"Drafter": "LookupProposer", "Nobody": "NullProposer"}


def __getattr__(name: str) -> Any:
    """Resolve the old class paths, which existing vLLM configurations name."""
    if name in _RENAMED:
        new = _RENAMED[name]
        message = f"forerun.engines.vllm.{name} is now forerun.engines.vllm.{new}; change the configuration"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        log_deprecation(message)
        return globals()[new]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
