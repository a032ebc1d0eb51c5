"""What many tests share: where the model is, and a tiny one that is made on the spot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

ROOT = Path(__file__).parent.parent

settings.register_profile("forerun", deadline=None)  # the first call compiles, and machines are noisy
settings.load_profile("forerun")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


@pytest.fixture(scope="session")
def tiny_llama() -> Any:
    """A random Llama with a vocabulary of 16, in float32: quick, and as unpredictable as one can be."""
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


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The directory of the real model, made by `make models` if it is not there yet."""
    script = ROOT / "scripts" / "models.py"
    made = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    return Path(made.stdout.splitlines()[-1])
