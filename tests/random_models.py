"""Random models of transformers for tests."""

from __future__ import annotations

from typing import Any

import torch


def random_llama(
    vocab: int, sizes: tuple[int, int], heads: tuple[int, int], *, max_length: int, spread: float
) -> Any:
    """Two layers of a Llama in float32, always with the same weights.

    `sizes` are hidden and intermediate, `heads` those of queries and keys; weights have the standard
    deviation `spread`.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=sizes[0],
        intermediate_size=sizes[1],
        num_hidden_layers=2,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        max_position_embeddings=max_length,
        initializer_range=spread,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()
