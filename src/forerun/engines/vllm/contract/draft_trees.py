"""Private names of vLLM that draft trees use: the KV cache, and the batch of the V2 model runner."""

from __future__ import annotations

from typing import Final

from forerun.engines.vllm.contract.private_names import PrivateNames
from forerun.engines.vllm.contract.v2_runner import MODEL_RUNNER

_KV_CACHE_CONFIG: Final = "vllm.v1.kv_cache_interface.KVCacheConfig"

DRAFT_TREES: Final = PrivateNames(
    calls={
        "vllm.v1.core.sched.scheduler.Scheduler.__init__": ("self", "vllm_config", "kv_cache_config"),
        "vllm.v1.core.sched.scheduler.Scheduler.get_grammar_bitmask": ("self", "scheduler_output"),
        f"{MODEL_RUNNER}.execute_model": ("self", "scheduler_output"),
        f"{MODEL_RUNNER}.gather_batch_req_state": ("self", "scheduler_output", "dummy_run"),
        f"{MODEL_RUNNER}.prepare_attn": ("self", "input_batch"),
        "vllm.v1.worker.gpu.model_runner.BatchReqState._replace": ("self",),
        "vllm.v1.worker.gpu.model_runner.ExecuteModelState._replace": ("self",),
        "vllm.v1.worker.utils.get_uniform_decode_token_count": (
            "num_reqs",
            "num_tokens",
            "max_query_len",
            "decode_graph_eligible",
        ),
    },
    fields={
        "vllm.v1.core.sched.output.SchedulerOutput": ("num_scheduled_tokens", "total_num_scheduled_tokens"),
        "vllm.v1.kv_cache_interface.FullAttentionSpec": ("block_size",),
        "vllm.v1.kv_cache_interface.KVCacheGroupSpec": ("kv_cache_spec",),
        _KV_CACHE_CONFIG: ("kv_cache_groups", "num_blocks"),
        "vllm.v1.outputs.LogprobsTensors": (
            "logprob_token_ids",
            "logprobs",
            "selected_token_ranks",
            "cu_num_generated_tokens",
        ),
        "vllm.v1.worker.gpu.input_batch.InputBatch": (
            "cu_num_logits",
            "cu_num_logits_np",
            "expanded_local_pos",
            "idx_mapping",
            "idx_mapping_np",
            "input_ids",
            "is_prefilling_np",
            "num_computed_prefill_tokens_np",
            "num_computed_tokens_np",
            "num_draft_tokens",
            "num_draft_tokens_per_req",
            "num_reqs",
            "num_scheduled_tokens",
            "num_tokens",
            "positions",
            "prefill_len_np",
            "query_start_loc",
            "query_start_loc_np",
            "req_ids",
            "seq_lens",
            "seq_lens_cpu_upper_bound",
        ),
        "vllm.v1.worker.gpu.model_runner.BatchReqState": (
            "decode_graph_eligible",
            "idx_mapping_np",
            "is_prefilling_np",
            "max_seq_len_np",
            "num_computed_prefill_tokens_np",
            "num_draft_tokens_np",
            "num_scheduled_tokens",
            "num_tokens",
            "prefill_len_np",
            "prefill_runs_as_decode_np",
            "req_ids",
        ),
        "vllm.v1.worker.gpu.model_runner.ExecuteModelState": ("input_batch",),
        "vllm.v1.worker.gpu.sample.output.SamplerOutput": (
            "logprobs_tensors",
            "num_rejected",
            "num_sampled",
            "sampled_token_ids",
        ),
    },
    live={
        MODEL_RUNNER: ("kv_cache_config", "kv_caches"),
        _KV_CACHE_CONFIG: ("kv_cache_groups", "num_blocks"),
        "vllm.v1.worker.gpu.states.RequestState": ("num_computed_tokens",),
        "vllm.v1.worker.gpu.buffer_utils.StagedWriteTensor": ("gpu",),
    },
)
"""Names in use with draft trees."""

DRAFT_TREES_OBJECTS: Final = {
    "model_runner": MODEL_RUNNER,
    "model_runner.kv_cache_config": _KV_CACHE_CONFIG,
    "model_runner.req_states": "vllm.v1.worker.gpu.states.RequestState",
    "model_runner.req_states.num_computed_tokens": "vllm.v1.worker.gpu.buffer_utils.StagedWriteTensor",
}
"""The live objects that a worker leads to, by their attribute path."""
