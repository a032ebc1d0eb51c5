"""The scratch pool of an engine with draft trees, derived from its configuration."""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec

from forerun.engines.vllm.launch import speculation_config
from forerun.engines.vllm.scratch_pool import ScratchPool
from forerun.errors import UnsupportedEngine


def make_scratch_pool(vllm_config: Any, kv_cache_config: Any) -> ScratchPool:
    """The same pool in the scheduler and in every worker."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1 or type(groups[0].kv_cache_spec) is not FullAttentionSpec:
        found = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
        raise UnsupportedEngine(
            f"draft trees need a model with full attention in all layers; got {found}; leave draft_trees out"
        )
    num_speculative_tokens: int = vllm_config.speculative_config.num_speculative_tokens
    return ScratchPool.fit(
        kv_cache_config.num_blocks,
        groups[0].kv_cache_spec.block_size,
        max_draft=min(num_speculative_tokens, speculation_config(vllm_config).max_draft),
        max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
        max_model_len=vllm_config.model_config.max_model_len,
    )
