"""Private names of vLLM's V1 model runner and its sampler."""

from __future__ import annotations

from typing import Final

from forerun.engines.vllm.contract.private_names import PrivateNames

MODEL_RUNNER: Final = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"

V1_RUNNER: Final = PrivateNames(
    calls={
        f"{MODEL_RUNNER}._bookkeeping_sync": ("self", "scheduler_output"),
        f"{MODEL_RUNNER}._dummy_run": ("self", "num_tokens", "*", "skip_eplb"),
        f"{MODEL_RUNNER}._get_spec_decode_draft_probs": ("self", "spec_decode_metadata"),
        f"{MODEL_RUNNER}._sample": ("self", "logits", "spec_decode_metadata"),
        f"{MODEL_RUNNER}.execute_model": ("self", "scheduler_output"),
        f"{MODEL_RUNNER}.propose_draft_token_ids": ("self", "scheduler_output"),
        f"{MODEL_RUNNER}.sample_tokens": ("self", "grammar_output"),
        f"{MODEL_RUNNER}.take_draft_token_ids": ("self",),
        "vllm.v1.worker.gpu_model_runner.build_logitsprocs": ("vllm_config",),
        "vllm.v1.sample.logits_processor.interface.LogitsProcessor.apply": ("self", "logits"),
        "vllm.v1.sample.logits_processor.interface.LogitsProcessor.update_state": ("self", "batch_update"),
        "vllm.v1.sample.ops.topk_topp_sampler.TopKTopPSampler.forward_cpu": (
            "self",
            "logits",
            "generators",
            "k",
            "p",
        ),
        "vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_top_p": ("logits", "k", "p"),
        "vllm.v1.sample.rejection_sampler.RejectionSampler.forward": (
            "self",
            "metadata",
            "draft_probs",
            "logits",
            "sampling_metadata",
        ),
        "vllm.v1.sample.sampler.Sampler.apply_logits_processors": (
            "self",
            "logits",
            "sampling_metadata",
            "predict_bonus_token",
        ),
        "vllm.v1.sample.sampler.Sampler.apply_temperature": ("logits", "temp", "all_random"),
        "vllm.v1.sample.sampler.Sampler.forward": ("self", "logits", "sampling_metadata"),
        "vllm.v1.sample.sampler.Sampler.greedy_sample": ("logits",),
        "vllm.v1.spec_decode.llm_base_proposer.SpecDecodeBaseProposer.dummy_run": ("self", "num_tokens"),
        "vllm.model_executor.models.interfaces_base.VllmModelForTextGeneration.compute_logits": (
            "self",
            "hidden_states",
        ),
    },
    fields={
        "vllm.v1.outputs.LogprobsTensors": ("logprob_token_ids", "logprobs", "selected_token_ranks"),
        "vllm.v1.outputs.SamplerOutput": ("sampled_token_ids", "logprobs_tensors"),
        "vllm.v1.sample.metadata.SamplingMetadata": (
            "all_greedy",
            "all_random",
            "allowed_token_ids_mask",
            "bad_words_token_ids",
            "generators",
            "logitsprocs",
            "logprob_token_ids",
            "max_num_logprobs",
            "no_penalties",
            "spec_token_ids",
            "temperature",
            "thinking_budget_state_holder",
            "top_k",
            "top_p",
        ),
        "vllm.v1.spec_decode.metadata.SpecDecodeMetadata": ("draft_token_ids", "num_draft_tokens"),
        "vllm.v1.worker.gpu_input_batch.CachedRequestState": ("sampling_params",),
    },
    live={
        MODEL_RUNNER: (
            "_draft_prob_req_ids",
            "_draft_probs",
            "attn_groups",
            "device",
            "discard_request_mask",
            "input_batch",
            "max_num_tokens",
            "requests",
            "sampler",
            "speculative_config",
            "vllm_config",
        ),
        "vllm.v1.utils.CpuGpuBuffer": ("np",),
        "vllm.v1.worker.gpu_input_batch.InputBatch": (
            "generators",
            "logitsprocs",
            "num_reqs",
            "req_ids",
            "req_output_token_ids",
        ),
        "vllm.v1.sample.logits_processor.state.LogitsProcessors": (
            "all",
            "argmax_invariant",
            "non_argmax_invariant",
        ),
    },
    assigned={
        "vllm.v1.sample.ops.topk_topp_sampler.TopKTopPSampler": ("forward", "logprobs_mode"),
        "vllm.v1.sample.sampler.Sampler": ("topk_topp_sampler", "use_fp64_gumbel"),
        "vllm.v1.spec_decode.metadata.SpecDecodeMetadata": ("max_spec_len",),
        "vllm.v1.sample.thinking_budget_state.ThinkingBudgetStateHolder": ("in_spec_mode",),
    },
)
"""Names in use with and without speculation."""

V1_RUNNER_OBJECTS: Final = {
    "model_runner": MODEL_RUNNER,
    "model_runner.discard_request_mask": "vllm.v1.utils.CpuGpuBuffer",
    "model_runner.input_batch": "vllm.v1.worker.gpu_input_batch.InputBatch",
    "model_runner.input_batch.logitsprocs": "vllm.v1.sample.logits_processor.state.LogitsProcessors",
}
"""The live objects that a worker leads to, by their attribute path."""

V1_SPECULATION: Final = PrivateNames(live={MODEL_RUNNER: ("drafter", "rejection_sampler")})
"""Names that exist only if the runner speculates."""

V1_LOADED: Final = PrivateNames(live={MODEL_RUNNER: ("model",)})
"""Names that exist once the model is loaded."""

V1_RUNNER_ONLY: Final = {"": MODEL_RUNNER}

LOGITS_PROCESSORS: Final = PrivateNames(
    live={
        "vllm.v1.sample.logits_processor.LogitBiasLogitsProcessor": ("biases",),
        "vllm.v1.sample.logits_processor.MinPLogitsProcessor": ("min_p_count",),
        "vllm.v1.sample.logits_processor.MinTokensLogitsProcessor": ("min_toks",),
    },
)
"""State of the logits processors that vLLM creates for every runner."""
