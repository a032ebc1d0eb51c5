"""Invariant mode of vLLM on CPUs: logits are a function of the tokens before them, bit for bit.

A matrix product can round a row differently when the number of rows changes, so a verified draft token would
get other logits than in non-speculative decoding. In invariant mode every linear layer computes in blocks of
sizes that give a row the same bits, and attention treats every row as a query of length one
(`decode_shaped_attention`). vLLM's other kernels on CPUs (norms, rotary embedding, activations) compute each
row by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from vllm import envs
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from forerun.core.row_blocks import (
    REFERENCE_ROWS,
    cancelling_product,
    sizes_with_equal_rows,
    split_into_blocks,
)
from forerun.engines.vllm.stats import logger
from forerun.errors import UnsupportedEngine

BLOCK_SIZES: Final = (REFERENCE_ROWS, 1, 2, 4, 8, 12, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Rows of a call of a linear layer; those are used that give rows the bits of the first."""

KV_SPLIT_VARIABLE: Final = "VLLM_CPU_ATTN_SPLIT_KV"

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""vLLM's `cpu_linear` of a layer: input, weight and bias to output. Packed weights replace the given one."""


class BlockedLinear:
    """A linear layer that calls vLLM's kernel with numbers of rows in `sizes`; the last call is padded."""

    def __init__(self, stock: Linear, sizes: Sequence[int]) -> None:
        self.stock = stock
        self.sizes = sizes

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The layer's output for rows of any number, in the leading dimensions of `x`."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        blocks = split_into_blocks(max(1, len(rows)), self.sizes)
        outputs = [self.stock(_padded(rows[first:end], size), weight, bias) for first, end, size in blocks]
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return out[: len(rows)].reshape(*x.shape[:-1], out.shape[-1])


def _padded(rows: torch.Tensor, size: int) -> torch.Tensor:
    """The rows, followed by zeros up to `size` rows."""
    return torch.nn.functional.pad(rows, (0, 0, 0, size - len(rows))) if len(rows) < size else rows


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
    sizes_by_shape: dict[tuple[int, int], tuple[int, ...]] = {}
    num_layers = 0
    for name, layer, num_inputs in _linear_layers(model):
        weight = torch.nn.Module.get_parameter(layer, "weight")
        stock = layer.cpu_linear
        probe = torch.zeros(REFERENCE_ROWS, num_inputs, dtype=dtype)
        shape = (num_inputs, stock(probe, weight, None).shape[-1])
        if shape not in sizes_by_shape:
            sizes_by_shape[shape] = _equal_sizes(*shape, dtype)
        layer.cpu_linear = BlockedLinear(stock, sizes_by_shape[shape])
        if not (layer.cpu_linear.sizes and _is_position_independent(layer.cpu_linear, weight, probe)):
            raise UnsupportedEngine(
                f"the result of a row in the linear layer {name} depends on its position in a block of"
                f" {REFERENCE_ROWS} rows, on this CPU in {dtype}; start without --invariant"
            )
        num_layers += 1
    smallest = max((min(sizes) for sizes in sizes_by_shape.values()), default=1)
    logger.info("Invariant mode: %d linear layers in blocks of %d rows or more", num_layers, smallest)


def _equal_sizes(num_inputs: int, num_outputs: int, dtype: torch.dtype) -> tuple[int, ...]:
    """The block sizes in which vLLM's kernel for this shape gives rows the bits of the reference."""
    layer: Any = torch.nn.Module()
    weights, rows = cancelling_product(max(BLOCK_SIZES), num_inputs, num_outputs, dtype)
    layer.weight = torch.nn.Parameter(weights, requires_grad=False)
    dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
    return sizes_with_equal_rows(lambda block: layer.cpu_linear(block, layer.weight, None), rows, BLOCK_SIZES)


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


def _is_position_independent(linear: Linear, weight: torch.Tensor, like: torch.Tensor) -> bool:
    """Whether rows have the same results in other positions and blocks."""
    rows = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like.dtype)
    return bool(sizes_with_equal_rows(lambda block: linear(block, weight, None), rows, [len(rows)]))
