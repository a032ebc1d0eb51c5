"""Attention of vLLM in which every row is a query of length one, for invariant mode.

Kernels tile keys and values by the number of rows of a query, so a draft token or a prompt token that is
one of several rows of a query gets another result than in a step of its own. As queries of length one with
their own sequence lengths and their request's block table, all rows have the tiling of a decode step. Writing
to the KV cache is unchanged, and happens before the rows are read. On GPUs this has not been run; it copies
nothing to the host, and needs steps without CUDA graphs, which would keep the tensors of their capture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

from forerun.engines.vllm.runner_choice import is_cpu_platform
from forerun.errors import UnsupportedEngine


def install_decode_shaped_attention(runner: Any) -> None:
    """Make the target model's metadata builders decode-shaped, once the KV cache exists.

    Draft models have builders of their own, which stay as they are.
    """
    for groups in runner.attn_groups:
        for group in groups:
            for builder in group.metadata_builders:
                if is_cpu_platform() and not isinstance(builder, CPUAttentionMetadataBuilder):
                    raise UnsupportedEngine(
                        f"invariant mode supports vLLM's CPU attention, and the model has layers with"
                        f" {type(builder).__name__}; start without --invariant"
                    )
                builder.build = _decode_shaped(builder.build)


def _decode_shaped(build: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a builder's `build` so that it gets one request per row."""

    @wraps(build)
    def wrapped(common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        return build(common_prefix_len, split_rows(common_attn_metadata), *args, **kwargs)

    return wrapped


def split_rows(metadata: Any) -> Any:
    """The metadata of a step with every row as a request of its own, whose context ends at the row."""
    if metadata.causal is not True:
        raise UnsupportedEngine("invariant mode needs causal attention; start without --invariant")
    starts = metadata.query_start_loc
    num_rows = starts.diff()
    total = int(metadata.query_start_loc_cpu[-1])
    requests = torch.repeat_interleave(num_rows, output_size=total)
    positions = torch.arange(total + 1, dtype=starts.dtype, device=starts.device)
    rows_after = starts[1:][requests] - 1 - positions[:-1]
    return replace(
        metadata,
        query_start_loc=positions,
        query_start_loc_cpu=torch.arange(total + 1, dtype=starts.dtype),
        seq_lens=metadata.seq_lens[requests] - rows_after.to(metadata.seq_lens.dtype),
        num_reqs=total,
        max_query_len=1,
        block_table_tensor=metadata.block_table_tensor[requests],
    )
