"""Names of vLLM that invariant mode uses, on both model runners."""

from __future__ import annotations

from typing import Final

from forerun.engines.vllm.contract.private_names import PrivateNames

LINEAR_LAYER: Final = "vllm.model_executor.layers.linear.LinearBase"
OUTPUT_LAYER: Final = "vllm.model_executor.layers.vocab_parallel_embedding.VocabParallelEmbedding"

INVARIANT: Final = PrivateNames(
    paths=("vllm.envs.VLLM_CPU_ATTN_SPLIT_KV",),
    calls={
        "vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm": ("layer", "remove_weight"),
        "vllm.v1.attention.backends.cpu_attn.CPUAttentionMetadataBuilder.build": (
            "self",
            "common_prefix_len",
            "common_attn_metadata",
        ),
    },
    fields={
        "vllm.v1.attention.backend.CommonAttentionMetadata": (
            "block_table_tensor",
            "causal",
            "max_query_len",
            "num_reqs",
            "query_start_loc",
            "query_start_loc_cpu",
            "seq_lens",
        ),
        "vllm.v1.worker.utils.AttentionGroup": ("metadata_builders",),
    },
    live={
        LINEAR_LAYER: ("cpu_linear", "input_size"),
        OUTPUT_LAYER: ("cpu_linear", "embedding_dim"),
    },
)
"""Names in use in invariant mode; the attributes are those of the model's layers on CPUs."""
