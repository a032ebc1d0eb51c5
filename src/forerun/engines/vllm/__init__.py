"""The vLLM plug-in; the only package that imports vllm.

- `LookupProposer`: a lookup drafter for stock vLLM through its `custom_class` hook; replaces nothing
- `scheduler.Scheduler`: drafts where requests and salts are known; the worker then has a `NullProposer`
- `worker.CPUWorker`, `worker.CUDAWorker`: run `sampler.SpeculativeSampler`, which verifies losslessly
- `contract`: every private name of vLLM that the plug-in uses
"""

import warnings
from typing import Any

from forerun.engines.vllm.proposer import LookupProposer, NullProposer

__all__ = ["LookupProposer", "NullProposer"]

_RENAMED = {"Drafter": "LookupProposer", "Nobody": "NullProposer"}


def __getattr__(name: str) -> Any:
    """Resolve the old class paths, which existing vLLM configurations name."""
    if name in _RENAMED:
        new = _RENAMED[name]
        message = f"forerun.engines.vllm.{name} is now forerun.engines.vllm.{new}; change the configuration"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return globals()[new]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
