"""vLLM in a process of its own, which prints what it has to say after the word ANSWER."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ALONE = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""A small engine in one process."""


def ask(program: str | Path, *args: str | Path, **environment: str) -> Any:
    """Run a program that starts an engine, and return the JSON that it answers with.

    The engine is in the program's own process, which is quicker; its ranks, if there are several, are not,
    and need a program in a file.
    """
    finished = subprocess.run(
        [sys.executable, *(["-c"] if isinstance(program, str) else []), program, *args],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **ALONE, **environment},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("ANSWER ")]
    return json.loads(line.removeprefix("ANSWER "))


def audit(*words: str | Path) -> tuple[int, dict[str, Any]]:
    """Run `forerun audit` as a user does: its exit code and its report."""
    command = [sys.executable, "-m", "forerun", "audit", *map(str, words), "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert finished.returncode in (0, 1, 2), finished.stderr[-2000:]
    return finished.returncode, json.loads(finished.stdout)


def make_llamas(folder: Path, *, vocab_size: int, heads: int) -> tuple[Path, Path]:
    """A tiny random target and a tinier draft, saved where vLLM can load them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    for name, layers in (("target", 2), ("draft", 1)):
        config = LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=32 * heads,
            intermediate_size=64,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=256,
            initializer_range=0.2,
        )
        LlamaForCausalLM(config).save_pretrained(folder / name)
    return folder / "target", folder / "draft"
