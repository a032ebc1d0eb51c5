"""Invariant mode of vLLM's V1 runner on CPUs: logits are a function of the tokens before them, bit for bit.

A matrix product rounds a row differently when the number of rows changes, so a verified draft token would get
other logits than in non-speculative decoding. In invariant mode every linear layer computes in blocks of a
fixed number of rows, and attention treats every row as a query of length one (`decode_shaped_attention`).
vLLM's other kernels on CPUs (norms, rotary embedding, activations) compute each row by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from vllm import envs
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from forerun.engines.vllm.launch import speculation_config
from forerun.engines.vllm.runner_choice import is_cpu_platform
from forerun.engines.vllm.stats import logger
from forerun.errors import UnsupportedEngine

BLOCK_ROWS: Final = 8
"""Rows of a block. On SmolLM2's shapes in float32, 8 rows cost least when few requests run."""

KV_SPLIT_VARIABLE: Final = "VLLM_CPU_ATTN_SPLIT_KV"

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""vLLM's `cpu_linear` of a layer: input, weight and bias to output. Packed weights replace the given one."""


def is_invariant(vllm_config: Any) -> bool:
    """Whether forerun makes this engine invariant; on GPUs vLLM's own kernels do."""
    return speculation_config(vllm_config).invariant and is_cpu_platform()


class BlockedLinear:
    """A linear layer that calls vLLM's kernel with `BLOCK_ROWS` rows each time; the last block is padded.

    The kernel sees one shape only, so its reduction order does not depend on the number of rows.
    """

    def __init__(self, stock: Linear) -> None:
        self.stock = stock

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The layer's output for rows of any number, in the leading dimensions of `x`."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        num_padding = -len(rows) % BLOCK_ROWS if len(rows) else BLOCK_ROWS
        padded = torch.nn.functional.pad(rows, (0, 0, 0, num_padding)) if num_padding else rows
        blocks = [self.stock(block, weight, bias) for block in torch.split(padded, BLOCK_ROWS)]
        out = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
        return out[: len(rows)].reshape(*x.shape[:-1], out.shape[-1])


def split_no_kv() -> None:
    """Switch off the split of long sequences over threads, which depends on the other requests of a step.

    vLLM reads the variable until its workers have started.
    """
    os.environ[KV_SPLIT_VARIABLE] = "0"
    if envs.VLLM_CPU_ATTN_SPLIT_KV:
        raise UnsupportedEngine(
            f"invariant mode needs {KV_SPLIT_VARIABLE}=0, and vLLM has read another value in this process;"
            " set it before the first engine starts"
        )


def install_blocked_linears(model: Any, dtype: torch.dtype) -> None:
    """Make all linear layers, the output layer too, compute in blocks; raises if one is not supported."""
    num_layers = 0
    for name, layer, num_inputs in _linear_layers(model):
        layer.cpu_linear = BlockedLinear(layer.cpu_linear)
        weight = torch.nn.Module.get_parameter(layer, "weight")
        if not _is_position_independent(layer.cpu_linear, weight, num_inputs, dtype):
            raise UnsupportedEngine(
                f"the result of a row in the linear layer {name} depends on its position in a block of"
                f" {BLOCK_ROWS} rows, on this CPU in {dtype}; start without --invariant"
            )
        num_layers += 1
    logger.info("Invariant mode: %d linear layers in blocks of %d rows", num_layers, BLOCK_ROWS)


def _linear_layers(model: Any) -> Iterator[tuple[str, Any, int]]:
    """The name, the module and the number of inputs of every layer with a matrix product."""
    for name, module in torch.nn.Module.named_modules(model):
        if isinstance(module, LinearBase):
            yield name, module, module.input_size
        elif isinstance(module, VocabParallelEmbedding):
            yield name, module, module.embedding_dim
        elif isinstance(module, torch.nn.Linear):
            raise UnsupportedEngine(
                f"invariant mode supports linear layers of vLLM, and the model's {name} is a"
                " torch.nn.Linear; start without --invariant"
            )


def _is_position_independent(
    linear: Linear, weight: torch.Tensor, num_inputs: int, dtype: torch.dtype
) -> bool:
    """Whether a row has the same result at every position of a block, and beside other rows."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(BLOCK_ROWS, num_inputs, generator=generator).to(dtype)
    repeated = noise[:1].expand(BLOCK_ROWS, -1)
    results = linear(torch.cat([repeated, noise, noise.flip(0)]), weight, None)
    same, first, last = torch.split(results, BLOCK_ROWS)
    return torch.equal(same, first[:1].expand_as(same)) and torch.equal(last[-1], first[0])
