"""The kinds of private names, and those that do not depend on vLLM's model runner.

To follow a new version of vLLM, change `SUPPORTED_VERSION` and run the tests of the contract: they list the
names that no longer exist, and the names that forerun uses without listing them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

SUPPORTED_VERSION: Final = "0.32"

Names = Mapping[str, tuple[str, ...]]
"""Names by the path of the class or function that they belong to."""


@dataclass(frozen=True, slots=True)
class PrivateNames:
    """Private names of one part of an engine."""

    paths: tuple[str, ...] = ()
    """Modules, classes, constants and properties that have to exist."""
    calls: Names = field(default_factory=dict)
    """Functions that forerun calls, overrides or replaces: leading parameters, and after "*" further ones."""
    fields: Names = field(default_factory=dict)
    """Dataclasses, pydantic models and named tuples: fields that forerun reads, sets or passes."""
    live: Names = field(default_factory=dict)
    """Attributes of objects that exist before their first use, and are checked on these objects."""
    assigned: Names = field(default_factory=dict)
    """Attributes of objects that do not exist before their first use: the class assigns to `self.name`."""
    added: Names = field(default_factory=dict)
    """Attributes that forerun itself adds to objects of vLLM."""


FRONT_END: Final = PrivateNames(
    calls={
        "vllm.exceptions.VLLMValidationError.__init__": ("self", "message", "*", "parameter"),
        "vllm.v1.engine.input_processor.InputProcessor.__init__": ("self", "vllm_config"),
        "vllm.v1.engine.input_processor.InputProcessor._validate_params": ("self", "params"),
        "vllm.v1.engine.input_processor.InputProcessor.process_inputs": (
            "self",
            "request_id",
            "prompt",
            "params",
        ),
        "llvmlite.binding.ffi._lib_wrapper.__getattr__": ("self", "name"),
        "prometheus_client.core.CounterMetricFamily.__init__": (
            "self",
            "name",
            "documentation",
            "*",
            "labels",
        ),
        "prometheus_client.core.CounterMetricFamily.add_metric": ("self", "labels", "value"),
        "prometheus_client.core.GaugeMetricFamily.__init__": ("self", "name", "documentation", "*", "labels"),
        "prometheus_client.core.GaugeMetricFamily.add_metric": ("self", "labels", "value"),
        "prometheus_client.multiprocess.MultiProcessCollector.collect": ("self",),
        "prometheus_client.registry.Collector.collect": ("self",),
        "prometheus_client.registry.CollectorRegistry.register": ("self", "collector"),
        "uvicorn.Config.__init__": ("self", "*", "timeout_graceful_shutdown"),
    },
    paths=("prometheus_client.REGISTRY",),
    live={
        "vllm.v1.engine.input_processor.InputProcessor": (
            "model_config",
            "speculative_config",
            "tokenizer",
        )
    },
    added={
        "vllm.v1.engine.input_processor.InputProcessor": (
            "_forerun_drafters",
            "_forerun_invariant",
            "_forerun_runner",
        )
    },
)
"""Validation of requests, metrics and shutdown."""

FRONT_END_OBJECTS: Final = {"": "vllm.v1.engine.input_processor.InputProcessor"}

SERVE: Final = PrivateNames(
    calls={
        "vllm.entrypoints.cli.serve.ServeSubcommand.subparser_init": ("self", "subparsers"),
        "vllm.entrypoints.cli.serve.ServeSubcommand.validate": ("self", "args"),
        "vllm.entrypoints.cli.serve.ServeSubcommand.cmd": ("args",),
        "vllm.entrypoints.serve.utils.api_utils.cli_env_setup": (),
        "vllm.logger.configure_logging_from_args": ("args",),
        "vllm.utils.argparse_utils.FlexibleArgumentParser.parse_args": ("self",),
        "vllm.utils.argparse_utils.FlexibleArgumentParser.add_subparsers": ("self",),
    },
)
"""The command line of `python -m forerun.engines.vllm`; other processes do not import these modules."""

CONFIG: Final = PrivateNames(
    paths=("vllm.__version__", "vllm.platforms.current_platform"),
    calls={
        "vllm.config.model.ModelConfig.get_vocab_size": ("self",),
        "vllm.config.speculative.SpeculativeConfig.uses_draft_model": ("self",),
        "vllm.platforms.interface.Platform.get_device_name": ("device_id",),
        "vllm.platforms.interface.Platform.is_cpu": ("self",),
        "vllm.platforms.interface.Platform.is_cuda_alike": ("self",),
    },
    live={
        "vllm.config.vllm.VllmConfig": (
            "additional_config",
            "instance_id",
            "kv_transfer_config",
            "lora_config",
            "max_concurrent_batches",
            "model_config",
            "parallel_config",
            "scheduler_config",
            "speculative_config",
            "use_v2_model_runner",
            "watermark_config",
        ),
        "vllm.config.model.ModelConfig": (
            "dtype",
            "enable_prompt_embeds",
            "enable_trace_replay",
            "enforce_eager",
            "is_encoder_decoder",
            "is_moe",
            "is_multimodal_model",
            "max_model_len",
            "model",
            "quantization",
            "return_sampling_mask",
            "tokenizer",
        ),
        "vllm.config.parallel.ParallelConfig": (
            "data_parallel_index",
            "decode_context_parallel_size",
            "enable_batch_sharded_sampling",
            "pipeline_parallel_size",
            "prefill_context_parallel_size",
            "tensor_parallel_size",
            "use_ubatching",
            "world_size_across_dp",
        ),
        "vllm.config.scheduler.SchedulerConfig": (
            "async_scheduling",
            "max_num_batched_tokens",
            "max_num_seqs",
            "scheduler_cls",
        ),
        "vllm.config.speculative.SpeculativeConfig": ("method", "model", "num_speculative_tokens"),
    },
)
"""vLLM's configuration and platform."""

CONFIG_OBJECTS: Final = {
    "": "vllm.config.vllm.VllmConfig",
    "model_config": "vllm.config.model.ModelConfig",
    "parallel_config": "vllm.config.parallel.ParallelConfig",
    "scheduler_config": "vllm.config.scheduler.SchedulerConfig",
    "speculative_config": "vllm.config.speculative.SpeculativeConfig",
}
"""The live objects that a configuration leads to, by their attribute path."""

SCHEDULER: Final = PrivateNames(
    paths=("vllm.v1.structured_output.request.StructuredOutputRequest.grammar",),
    calls={
        "vllm.v1.core.sched.scheduler.Scheduler.schedule": ("self",),
        "vllm.v1.core.sched.scheduler.Scheduler.update_from_output": (
            "self",
            "scheduler_output",
            "model_runner_output",
        ),
        "vllm.v1.core.sched.scheduler.Scheduler.update_draft_token_ids": ("self", "draft_token_ids"),
        "vllm.v1.core.sched.scheduler.Scheduler._free_request": ("self", "request"),
        "vllm.v1.engine.core.EngineCore.post_step": ("self", "model_executed"),
        "vllm.v1.structured_output.StructuredOutputManager.validate_tokens": (
            "self",
            "request",
            "spec_tokens",
        ),
        "vllm.v1.structured_output.backend_xgrammar.XgrammarGrammar.is_terminated": ("self",),
        "vllm.tokenizers.protocol.TokenizerLike.encode": ("self", "text", "*", "add_special_tokens"),
    },
    fields={
        "vllm.v1.outputs.ModelRunnerOutput": ("req_id_to_index", "sampled_token_ids"),
        "vllm.v1.outputs.DraftTokenIds": ("draft_token_ids",),
        "vllm.v1.core.sched.output.SchedulerOutput": (
            "num_scheduled_tokens",
            "total_num_scheduled_tokens",
            "scheduled_spec_decode_tokens",
            "num_spec_tokens_to_schedule",
        ),
        "vllm.v1.structured_output.backend_xgrammar.XgrammarGrammar": ("matcher", "vocab_size"),
        "vllm.v1.structured_output.request.StructuredOutputRequest": ("reasoning_ended",),
    },
    live={
        "vllm.v1.core.sched.scheduler.Scheduler": (
            "dynamic_sd_lookup",
            "hash_block_size",
            "max_model_len",
            "max_num_running_reqs",
            "max_num_scheduled_tokens",
            "num_spec_tokens",
            "requests",
            "running",
            "structured_output_manager",
            "use_v2_model_runner",
            "vllm_config",
            "waiting",
        ),
        "vllm.v1.structured_output.StructuredOutputManager": ("enable_in_reasoning", "reasoner_cls"),
    },
    assigned={
        "vllm.v1.engine.core.EngineCore": ("check_for_draft_tokens", "scheduler"),
        "vllm.v1.structured_output.StructuredOutputManager": ("tokenizer",),  # not without a tokenizer
    },
    added={
        "vllm.v1.core.sched.output.SchedulerOutput": ("forerun_plan",),
        "vllm.v1.outputs.DraftTokenIds": ("seconds",),
    },
)
"""The scheduler, its output and the grammars of requests."""

SCHEDULER_OBJECTS: Final = {
    "": "vllm.v1.core.sched.scheduler.Scheduler",
    "structured_output_manager": "vllm.v1.structured_output.StructuredOutputManager",
}

REQUEST: Final = PrivateNames(
    live={
        "vllm.v1.request.Request": (
            "all_token_ids",
            "block_hashes",
            "cache_salt",
            "is_prefill_chunk",
            "max_tokens",
            "num_computed_tokens",
            "num_output_placeholders",
            "num_output_tokens",
            "num_prompt_tokens",
            "num_tokens",
            "request_id",
            "sampling_params",
            "spec_token_ids",
            "structured_output_request",
            "use_structured_output",
        ),
        "vllm.sampling_params.SamplingParams": (
            "extra_args",
            "structured_outputs",
            "seed",
            "temperature",
            "thinking_token_budget",
        ),
    },
)
"""A request in the scheduler, and its sampling parameters."""

REQUEST_OBJECTS: Final = {
    "": "vllm.v1.request.Request",
    "sampling_params": "vllm.sampling_params.SamplingParams",
}

WORKER: Final = PrivateNames(
    calls={
        "vllm.v1.worker.cpu_worker.CPUWorker.init_device": ("self",),
        "vllm.v1.worker.cpu_worker.CPUWorker.load_model": ("self",),
        "vllm.v1.worker.cpu_worker.CPUWorker.compile_or_warm_up_model": ("self",),
        "vllm.v1.worker.gpu_worker.Worker.init_device": ("self",),
        "vllm.v1.worker.gpu_worker.Worker.load_model": ("self",),
        "vllm.v1.worker.gpu_worker.Worker.compile_or_warm_up_model": ("self",),
    },
    live={
        "vllm.v1.worker.worker_base.WorkerBase": ("model_runner", "use_v2_model_runner", "vllm_config"),
    },
)
"""The worker."""

WORKER_OBJECTS: Final = {"": "vllm.v1.worker.worker_base.WorkerBase"}
