"""Private names of vLLM's V2 model runner, its samplers, its speculators and its async scheduler."""

from __future__ import annotations

from typing import Final

from forerun.engines.vllm.contract.private_names import PrivateNames

MODEL_RUNNER: Final = "vllm.v1.worker.gpu.model_runner.GPUModelRunner"
_SAMPLER: Final = "vllm.v1.worker.gpu.sample.sampler.Sampler"
_REJECTION_SAMPLER: Final = "vllm.v1.worker.gpu.spec_decode.rejection_sampler.RejectionSampler"
_SPECULATOR: Final = "vllm.v1.worker.gpu.spec_decode.speculator.BaseSpeculator"
DRAFT_MODEL_SPECULATOR: Final = "vllm.v1.worker.gpu.spec_decode.speculator.DraftModelSpeculator"

V2_SCHEDULER: Final = PrivateNames(
    calls={
        "vllm.v1.core.sched.async_scheduler.AsyncScheduler.schedule": ("self",),
        "vllm.v1.core.sched.async_scheduler.AsyncScheduler.update_from_output": (
            "self",
            "scheduler_output",
            "model_runner_output",
        ),
    },
    added={"vllm.v1.outputs.ModelRunnerOutput": ("forerun_report",)},
)
"""Names of schedulers that only the V2 runner needs."""

V2_RUNNER: Final = PrivateNames(
    paths=(
        "vllm.v1.worker.gpu.model_runner.init_speculator",
        "vllm.v1.worker.gpu.model_runner.RequestState",
        "vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator.StandaloneARSpeculator",
    ),
    calls={
        f"{MODEL_RUNNER}.prepare_inputs": ("self", "scheduler_output"),
        f"{MODEL_RUNNER}.sample": ("self", "hidden_states", "input_batch", "grammar_output"),
        f"{MODEL_RUNNER}.sample_tokens": ("self", "grammar_output"),
        f"{MODEL_RUNNER}.take_draft_token_ids": ("self",),
        f"{_SPECULATOR}.init_cudagraph_manager": ("self", "cudagraph_mode"),
        f"{_SPECULATOR}.capture": ("self",),
        f"{_SPECULATOR}.propose": ("self", "input_batch", "*", "dummy_run", "num_speculative_tokens"),
        f"{DRAFT_MODEL_SPECULATOR}.sample_draft": (
            "self",
            "hidden_states",
            "sample_src_positions",
            "idx_mapping",
            "temperature",
            "seeds",
            "draft_step",
            "draft_logits",
            "spec_step_idx",
        ),
        f"{DRAFT_MODEL_SPECULATOR}.compute_draft_logits": ("self", "hidden_states", "spec_step_idx"),
        f"{_REJECTION_SAMPLER}.__init__": ("self", "sampler", "spec_config", "device"),
        f"{_REJECTION_SAMPLER}._verify": (
            "self",
            "logits",
            "draft_logits",
            "draft_sampled",
            "pos",
            "cu_num_logits",
            "idx_mapping",
            "idx_mapping_np",
            "expanded_idx_mapping",
            "expanded_local_pos",
            "seq_lens_upper_bound_np",
            "verify_draft_sampled",
        ),
        f"{_REJECTION_SAMPLER}._get_logprobs_tensors": (
            "self",
            "sampled",
            "num_sampled",
            "logits",
            "cu_num_logits",
            "cu_num_logits_np",
            "max_num_logprobs",
        ),
        f"{_SAMPLER}.apply_sampling_params": (
            "self",
            "logits",
            "expanded_idx_mapping",
            "idx_mapping",
            "idx_mapping_np",
            "pos",
            "input_ids",
            "expanded_local_pos",
            "seq_lens_upper_bound_np",
        ),
        "vllm.v1.worker.gpu.sample.gumbel.gumbel_sample": (
            "logits",
            "expanded_idx_mapping",
            "temperature",
            "seed",
            "pos",
            "*",
            "apply_temperature",
            "is_drafting",
            "use_fp64",
        ),
        "vllm.v1.worker.gpu.sample.logprob.compute_topk_scores": (
            "logits",
            "num_logprobs",
            "sampled_token_ids",
            "cu_num_logits",
            "*",
            "logprob_token_ids_state",
            "expanded_idx_mapping",
            "max_per_req_token_ids",
            "logits_mode",
        ),
        "vllm.v1.worker.gpu.sample.logprob.LogprobTokenIdsState.max_num_token_ids": (
            "self",
            "idx_mapping_np",
        ),
        "vllm.v1.worker.gpu.states.RequestState.__init__": ("self", "*", "use_dense_all_token_ids"),
        "vllm.utils.torch_utils.async_tensor_h2d": ("data", "device"),
    },
    fields={
        "vllm.v1.outputs.DraftTokenIds": ("req_ids", "draft_token_ids"),
        "vllm.v1.outputs.ModelRunnerOutput": ("req_ids",),
        "vllm.v1.worker.gpu.input_batch.InputBatch": (
            "cu_num_logits_np",
            "idx_mapping_np",
            "num_draft_tokens",
            "num_reqs",
            "req_ids",
            "seq_lens_cpu_upper_bound",
        ),
        "vllm.v1.worker.gpu.model_runner.ExecuteModelState": ("num_spec_tokens_to_schedule",),
    },
    live={
        MODEL_RUNNER: (
            "device",
            "execute_model_state",
            "model",
            "num_speculative_steps",
            "output_copy_stream",
            "rejection_sampler",
            "req_states",
            "sampler",
            "speculative_config",
            "speculator",
            "vllm_config",
        ),
        _SAMPLER: (
            "logprob_token_ids_state",
            "logprobs_mode",
            "penalties_state",
            "sampling_states",
            "use_fp64_gumbel",
        ),
        "vllm.v1.worker.gpu.sample.penalties.PenaltiesState": ("output_bin_counts", "use_penalty"),
        "vllm.v1.worker.gpu.sample.states.SamplingStates": ("seeds", "temperature"),
        "vllm.v1.worker.gpu.buffer_utils.UvaBackedTensor": ("gpu",),
        "vllm.v1.worker.gpu.states.RequestState": ("draft_tokens", "req_id_to_index"),
        _REJECTION_SAMPLER: ("num_speculative_steps", "sampler"),
    },
    assigned={
        "vllm.v1.worker.gpu.async_utils.AsyncOutput": (
            "copy_event",
            "model_runner_output",
            "num_sampled_tokens_np",
            "sampled_token_ids",
        ),
    },
)
"""Names in use with every drafter."""

V2_RUNNER_OBJECTS: Final = {
    "model_runner": MODEL_RUNNER,
    "model_runner.sampler": _SAMPLER,
    "model_runner.sampler.penalties_state": "vllm.v1.worker.gpu.sample.penalties.PenaltiesState",
    "model_runner.sampler.sampling_states": "vllm.v1.worker.gpu.sample.states.SamplingStates",
    "model_runner.sampler.sampling_states.seeds": "vllm.v1.worker.gpu.buffer_utils.UvaBackedTensor",
    "model_runner.req_states": "vllm.v1.worker.gpu.states.RequestState",
    "model_runner.rejection_sampler": _REJECTION_SAMPLER,
}
"""The live objects that a worker leads to, by their attribute path."""

V2_DRAFT_MODEL: Final = PrivateNames(
    live={
        DRAFT_MODEL_SPECULATOR: (
            "draft_tokens",
            "num_speculative_steps",
            "use_fp64_gumbel",
            "use_local_argmax_reduction",
        ),
    },
)
"""Names of speculators that run a model."""

V2_DRAFT_MODEL_OBJECTS: Final = {"model_runner.speculator": DRAFT_MODEL_SPECULATOR}
