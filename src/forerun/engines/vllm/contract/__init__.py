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

from torch.nn import Module

from forerun.engines.vllm.contract import checks, v1_runner, v2_runner
from forerun.engines.vllm.contract.draft_trees import DRAFT_TREES, DRAFT_TREES_OBJECTS
from forerun.engines.vllm.contract.invariant_mode import INVARIANT
from forerun.engines.vllm.contract.predicted_output import PREDICTED_OUTPUT
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
    WORKER,
    WORKER_OBJECTS,
    PrivateNames,
)
from forerun.engines.vllm.contract.v1_runner import (
    LOGITS_PROCESSORS,
    V1_LOADED,
    V1_RUNNER,
    V1_RUNNER_OBJECTS,
    V1_RUNNER_ONLY,
    V1_SPECULATION,
)
from forerun.engines.vllm.contract.v2_runner import (
    DRAFT_MODEL_SPECULATOR,
    V2_DRAFT_MODEL,
    V2_DRAFT_MODEL_OBJECTS,
    V2_RUNNER,
    V2_RUNNER_OBJECTS,
    V2_SCHEDULER,
)
from forerun.engines.vllm.supported_config import check_supported
from forerun.errors import UnsupportedEngine

COMMON: Final = (FRONT_END, CONFIG, SCHEDULER, REQUEST, WORKER, INVARIANT)
"""The names that an engine uses with both model runners."""

V1: Final = (V1_RUNNER, V1_SPECULATION, V1_LOADED, LOGITS_PROCESSORS)
V2: Final = (V2_SCHEDULER, V2_RUNNER, V2_DRAFT_MODEL, DRAFT_TREES)

ENGINE: Final = (*COMMON, *V1, *V2)
"""The names that an engine uses. Without an engine those of both runners are checked."""

EVERY: Final = (*ENGINE, PREDICTED_OUTPUT, SERVE)


def is_supported_version() -> bool:
    """Whether the installed vLLM is of the version whose names are listed."""
    found = checks.installed_version()
    return found == SUPPORTED_VERSION or found.startswith(f"{SUPPORTED_VERSION}.")


def check(groups: Sequence[PrivateNames] = ENGINE) -> None:
    """Raise `UnsupportedEngine` unless the installed libraries have these names, with their signatures."""
    faults = [] if is_supported_version() else [f"version {checks.installed_version()}"]
    _raise_if([*faults, *(fault for group in groups for fault in checks.static_faults(group))])


def check_serve() -> None:
    """Check the names that the command line of a server uses."""
    check((SERVE,))


def check_predicted_output() -> None:
    """Check the names that predicted outputs use in the front end of a server."""
    check((PREDICTED_OUTPUT,))


def check_config(vllm_config: Any) -> None:
    """Check a configuration; raises for settings that forerun does not support, too."""
    _raise_if(checks.live_faults(vllm_config, CONFIG_OBJECTS, CONFIG))
    check_supported(vllm_config)


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
    """Check a worker and its model runner.

    The V1 runner is checked once the device is initialized, the V2 runner once the model is loaded.
    """
    _raise_if(checks.live_faults(worker, WORKER_OBJECTS, WORKER))
    runner = worker.model_runner
    if isinstance(runner, checks.find(v1_runner.MODEL_RUNNER)):
        _check_v1(worker)
    elif isinstance(runner, checks.find(v2_runner.MODEL_RUNNER)):
        _check_v2(worker)
    else:
        raise UnsupportedEngine(
            f"forerun needs vLLM's V1 or V2 model runner, and got {type(runner).__qualname__} of"
            f" {type(runner).__module__}; use vllm serve on this platform"
        )


def _check_v1(worker: Any) -> None:
    """Check the V1 runner, its batch and its logits processors."""
    _raise_if(checks.live_faults(worker, V1_RUNNER_OBJECTS, V1_RUNNER))
    runner = worker.model_runner
    _raise_if(checks.object_faults(runner.input_batch.logitsprocs.all, LOGITS_PROCESSORS))
    if runner.speculative_config is not None:
        _raise_if(checks.live_faults(runner, V1_RUNNER_ONLY, V1_SPECULATION))


def _check_v2(worker: Any) -> None:
    """Check the V2 runner, its samplers and its speculator."""
    _raise_if(checks.live_faults(worker, V2_RUNNER_OBJECTS, V2_RUNNER))
    if isinstance(worker.model_runner.speculator, checks.find(DRAFT_MODEL_SPECULATOR)):
        _raise_if(checks.live_faults(worker, V2_DRAFT_MODEL_OBJECTS, V2_DRAFT_MODEL))


def check_loaded_worker(worker: Any) -> None:
    """Check a worker that has loaded its model and has a KV cache; draft trees use that of the V2 runner."""
    if isinstance(worker.model_runner, checks.find(v1_runner.MODEL_RUNNER)):
        _raise_if(checks.live_faults(worker.model_runner, V1_RUNNER_ONLY, V1_LOADED))
    elif isinstance(worker.model_runner, checks.find(v2_runner.MODEL_RUNNER)):
        _raise_if(checks.live_faults(worker, DRAFT_TREES_OBJECTS, DRAFT_TREES))


def check_invariant_model(model: Any) -> None:
    """Check the layers of a model that runs in invariant mode on a CPU."""
    _raise_if(dict.fromkeys(checks.object_faults(Module.modules(model), INVARIANT)))


def _raise_if(faults: Iterable[str]) -> None:
    if found := list(faults):
        raise UnsupportedEngine(
            f"forerun supports vLLM {SUPPORTED_VERSION}, and the installed one differs: {'; '.join(found)};"
            f" install vllm=={SUPPORTED_VERSION}.*"
        )
