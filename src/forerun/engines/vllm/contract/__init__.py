"""Every private name of vLLM and its libraries that forerun uses, and the checks that they exist.

A name is private if it is not part of a documented interface: `vllm.LLM`, `SamplingParams`, the flags of
`vllm serve`, its entry points for plug-ins, and the settings that name classes (`scheduler_cls`,
`worker_cls`, `custom_class`). So every other module, class, function, parameter, field and attribute of vLLM
that forerun imports, overrides, replaces, reads or sets is listed here. Attributes of `SamplingParams` and of
configurations are listed as well, because forerun reads them on objects that vLLM passes. The libraries are
vLLM, llvmlite, prometheus_client, and uvicorn, which is patched; names of numba are in `forerun.core.jit`.

The lists are in `private_names` and, for each model runner of vLLM, in a module of its own. An unsupported
version raises `UnsupportedEngine` with all differences: `check` before an engine starts, the other functions
on its live objects. Tests rename every listed name in turn, and record the names that a running engine uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from forerun.engines.vllm.contract import checks
from forerun.engines.vllm.contract.private_names import (
    CONFIG,
    CONFIG_OBJECTS,
    FRONT_END,
    FRONT_END_OBJECTS,
    REQUEST,
    REQUEST_OBJECTS,
    SCHEDULER,
    SCHEDULER_OBJECTS,
    SERVE,
    SUPPORTED_VERSION,
    PrivateNames,
)
from forerun.engines.vllm.contract.v1_runner import (
    LOGITS_PROCESSORS,
    MODEL_RUNNER,
    V1_LOADED,
    V1_RUNNER,
    V1_RUNNER_OBJECTS,
    V1_RUNNER_ONLY,
    V1_SPECULATION,
)
from forerun.errors import UnsupportedEngine

ENGINE: Final = (
    FRONT_END,
    CONFIG,
    SCHEDULER,
    REQUEST,
    V1_RUNNER,
    V1_SPECULATION,
    V1_LOADED,
    LOGITS_PROCESSORS,
)
"""The names that an engine uses."""

EVERY: Final = (*ENGINE, SERVE)


def check(groups: Sequence[PrivateNames] = ENGINE) -> None:
    """Raise `UnsupportedEngine` unless the installed libraries have these names, with their signatures."""
    found = checks.installed_version()
    is_supported = found == SUPPORTED_VERSION or found.startswith(f"{SUPPORTED_VERSION}.")
    faults = [] if is_supported else [f"version {found}"]
    _raise_if([*faults, *(fault for group in groups for fault in checks.static_faults(group))])


def check_serve() -> None:
    """Check the names that the command line of a server uses."""
    check((SERVE,))


def check_config(vllm_config: Any) -> None:
    """Check a configuration; raises `UnsupportedEngine` for settings that forerun does not support, too."""
    _raise_if(checks.live_faults(vllm_config, CONFIG_OBJECTS, CONFIG))
    stages = vllm_config.parallel_config.pipeline_parallel_size
    if stages > 1:
        raise UnsupportedEngine(
            f"got {stages} pipeline stages, which keep several steps in flight; forerun supports 1;"
            " use --tensor-parallel-size, or vllm serve for this model"
        )


def check_input_processor(input_processor: Any) -> None:
    """Check the object that validates requests in the front end."""
    _raise_if(checks.live_faults(input_processor, FRONT_END_OBJECTS, FRONT_END))


def check_scheduler(scheduler: Any) -> None:
    """Check a scheduler and its configuration."""
    _raise_if(checks.live_faults(scheduler, SCHEDULER_OBJECTS, SCHEDULER))
    check_config(scheduler.vllm_config)


def check_request(request: Any) -> None:
    """Check a request of the scheduler."""
    _raise_if(checks.live_faults(request, REQUEST_OBJECTS, REQUEST))


def check_worker(worker: Any) -> None:
    """Check a worker with an initialized device: its model runner, batch and logits processors."""
    _raise_if(checks.live_faults(worker, {"": V1_RUNNER_OBJECTS[""]}, V1_RUNNER))
    runner = worker.model_runner
    if not isinstance(runner, checks.find(MODEL_RUNNER)):
        raise UnsupportedEngine(
            f"forerun needs vLLM's V1 model runner, and got {type(runner).__qualname__} of"
            f" {type(runner).__module__}; set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    _raise_if(checks.live_faults(worker, V1_RUNNER_OBJECTS, V1_RUNNER))
    _raise_if(checks.processor_faults(runner.input_batch.logitsprocs.all, LOGITS_PROCESSORS))
    if runner.speculative_config is not None:
        _raise_if(checks.live_faults(runner, V1_RUNNER_ONLY, V1_SPECULATION))


def check_loaded_worker(worker: Any) -> None:
    """Check a worker that has loaded its model."""
    _raise_if(checks.live_faults(worker.model_runner, V1_RUNNER_ONLY, V1_LOADED))


def _raise_if(faults: Iterable[str]) -> None:
    if found := list(faults):
        raise UnsupportedEngine(
            f"forerun supports vLLM {SUPPORTED_VERSION}, and the installed one differs: {'; '.join(found)};"
            f" install vllm=={SUPPORTED_VERSION}.*"
        )
