"""Configurations of vLLM that forerun refuses, each with the reason and the remedy."""

from __future__ import annotations

import os
from typing import Any

from forerun.engines.vllm.launch import BATCH_INVARIANT_VARIABLE, speculation_config
from forerun.engines.vllm.runner_choice import Runner, is_cpu_platform
from forerun.engines.vllm.speculative_config import (
    LOOKUP_METHODS,
    check_method,
    check_verification,
    is_model_method,
)
from forerun.errors import ConfigurationError, UnsupportedEngine


def runner_of(vllm_config: Any) -> Runner:
    """The model runner that vLLM uses for a configuration."""
    return "v2" if vllm_config.use_v2_model_runner else "v1"


def check_supported(vllm_config: Any) -> None:
    """Raise `UnsupportedEngine` or `ConfigurationError` for a configuration that forerun does not support."""
    stages = vllm_config.parallel_config.pipeline_parallel_size
    if stages > 1:
        raise UnsupportedEngine(
            f"got {stages} pipeline stages, which keep several steps in flight; forerun supports 1;"
            " use --tensor-parallel-size, or vllm serve for this model"
        )
    if vllm_config.watermark_config is not None:
        raise UnsupportedEngine(
            "got a watermark_config: watermarks change how tokens are sampled, and forerun verifies draft"
            " tokens without them; leave --watermark-config out, or use vllm serve"
        )
    if vllm_config.model_config.enable_trace_replay:
        raise UnsupportedEngine(
            "got enable_trace_replay: vLLM replaces sampled tokens only in steps without draft tokens; leave"
            " --enable-trace-replay out, or use vllm serve"
        )
    if vllm_config.speculative_config is not None:
        _check_speculation(vllm_config)
    if speculation_config(vllm_config).invariant:
        _check_invariant(vllm_config)
    if speculation_config(vllm_config).draft_trees:
        _check_trees(vllm_config)


def _check_invariant(vllm_config: Any) -> None:
    """Invariant mode: linear layers on CPUs as `invariant` implements it, on GPUs as vLLM does."""
    model = vllm_config.model_config
    if not model.enforce_eager:
        raise UnsupportedEngine(
            "invariant mode does not support compiled layers and CUDA graphs; use --enforce-eager, or start"
            " without --invariant"
        )
    if not is_cpu_platform():
        if os.environ.get(BATCH_INVARIANT_VARIABLE) != "1":
            raise UnsupportedEngine(
                f"invariant mode needs {BATCH_INVARIANT_VARIABLE}=1 on GPUs, which forerun serve sets; set it"
                " before vLLM starts"
            )
        return
    num_ranks = vllm_config.parallel_config.tensor_parallel_size
    faults = {
        f"{model.quantization} quantization; use unquantized weights": model.quantization is not None,
        "LoRA adapters; leave --enable-lora out": vllm_config.lora_config is not None,
        "mixture-of-experts models; use a dense one": model.is_moe,
        f"{num_ranks} tensor-parallel ranks; use --tensor-parallel-size 1": num_ranks > 1,
    }
    for fault, is_present in faults.items():
        if is_present:
            raise UnsupportedEngine(f"invariant mode does not support {fault}, or start without --invariant")


def _check_trees(vllm_config: Any) -> None:
    """Raise `UnsupportedEngine` for a configuration in which paths of draft trees are not verified."""
    parallel, speculative = vllm_config.parallel_config, vllm_config.speculative_config
    method = None if speculative is None else speculative.method
    is_sharded = parallel.enable_batch_sharded_sampling
    faults = {
        "vLLM's V1 model runner; use V2": runner_of(vllm_config) == "v1",
        "async scheduling; use --no-async-scheduling": vllm_config.scheduler_config.async_scheduling,
        f"the speculative method {method!r}; use lookup drafters alone": method != LOOKUP_METHODS["v2"],
        "invariant mode; leave --invariant out": bool(speculation_config(vllm_config).invariant),
        "LoRA adapters; leave --enable-lora out": vllm_config.lora_config is not None,
        "KV connectors; leave --kv-transfer-config out": vllm_config.kv_transfer_config is not None,
        "context parallelism; leave it out": parallel.decode_context_parallel_size > 1
        or parallel.prefill_context_parallel_size > 1,
        "batch-sharded sampling; use --no-enable-batch-sharded-sampling": is_sharded,
        "dual batch overlap; leave --enable-dbo out": parallel.use_ubatching,
        "multimodal models": vllm_config.model_config.is_multimodal_model,
        "encoder-decoder models": vllm_config.model_config.is_encoder_decoder,
        "prompt embeddings; leave --enable-prompt-embeds out": vllm_config.model_config.enable_prompt_embeds,
        "sampling masks; leave them out": vllm_config.model_config.return_sampling_mask,
    }
    for fault, is_present in faults.items():
        if is_present:
            raise UnsupportedEngine(f"draft trees do not support {fault}; otherwise leave draft_trees out")


def _check_speculation(vllm_config: Any) -> None:
    """The method must fit the runner, and forerun's configuration the method."""
    runner = runner_of(vllm_config)
    method = vllm_config.speculative_config.method
    config = speculation_config(vllm_config)
    check_verification(config, runner)
    if method in LOOKUP_METHODS.values():
        if method != LOOKUP_METHODS[runner]:
            raise UnsupportedEngine(
                f"vLLM uses its {runner.upper()} model runner, and the speculative method {method!r} is for"
                f" the other one; pass runner={runner!r} to engine_arguments, or set VLLM_USE_V2_MODEL_RUNNER"
            )
        return
    check_method(method, runner)
    if config.draft_model is None and is_model_method(method):
        raise ConfigurationError(
            f"vLLM's speculative method is {method!r}, and forerun's configuration has no drafter `model`;"
            " start again with `forerun serve`, which now finds the speculator's configuration, or pass"
            " speculative_config to engine_arguments"
        )
