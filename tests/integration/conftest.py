"""Fixtures of tests with an engine: a tiny random model."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.fixture(scope="session")
def tiny_llama() -> Any:
    """A random float32 Llama with a vocabulary of 16: fast, with output that is hard to predict."""
    transformers = pytest.importorskip("transformers", reason="needs the extra `local`")
    config = transformers.LlamaConfig(
        vocab_size=16,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.4,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()
