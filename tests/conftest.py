"""What many tests share: a core for each worker, where the model is, and a tiny one made on the spot."""

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

settings.register_profile("forerun", deadline=None)  # the first call compiles, and machines are noisy
settings.load_profile("forerun")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


@pytest.fixture(scope="session", autouse=True)
def own_core(worker_id: str) -> None:
    """This worker's, which every engine and server that it starts inherits: engines that fight over cores
    take far longer than those that share them out. A worker without others has all of them.
    """
    if worker_id != "master" and CORES:
        number = int(worker_id.removeprefix("gw"))
        os.sched_setaffinity(0, {sorted(CORES)[number % len(CORES)]})


@pytest.fixture
def all_cores() -> Iterator[None]:
    """For a test of an engine whose ranks need a core each."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    yield
    os.sched_setaffinity(0, own)


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
