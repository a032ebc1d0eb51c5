"""Shared fixtures: one core per worker, the real model's directory, and a tiny random model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

ROOT = Path(__file__).parent.parent
CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()

settings.register_profile("forerun", deadline=None)  # the first call compiles, and machine speed varies
settings.load_profile("forerun")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


@pytest.fixture(scope="session", autouse=True)
def own_core(worker_id: str) -> None:
    """Pin each worker to one core, which its engines and servers inherit: engines that compete for cores are
    far slower than engines with a core each. A run without workers uses all cores.
    """
    if worker_id != "master" and CORES:
        number = int(worker_id.removeprefix("gw"))
        os.sched_setaffinity(0, {sorted(CORES)[number % len(CORES)]})


@pytest.fixture
def all_cores() -> Iterator[None]:
    """Lift the pinning, for engines whose ranks need a core each."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    yield
    os.sched_setaffinity(0, own)


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


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The directory of the real model, converted on first use."""
    script = ROOT / "scripts" / "models.py"
    converted = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    return Path(converted.stdout.splitlines()[-1])
