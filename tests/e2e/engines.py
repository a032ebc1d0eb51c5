"""Runs vLLM programs and `forerun audit` in separate processes, and makes tiny models for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).parents[1]

SINGLE_PROCESS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""A small engine in one process."""


def run_program(name: str, *args: str | Path, **environment: str) -> Any:
    """Run a program of `programs/`, and return the JSON that it prints after the marker ANSWER.

    The engine runs in the program's own process, which is faster; several ranks have a process each.
    """
    return run_in({**SINGLE_PROCESS, "PYTHONPATH": str(TESTS), **environment}, name, *args)


def run_in(environment: Mapping[str, str], name: str, *args: str | Path) -> Any:
    """Run a program of `programs/` with these environment variables; like `run_program`."""
    finished = subprocess.run(
        [sys.executable, "-m", f"e2e.programs.{name}", *args],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("ANSWER ")]
    return json.loads(line.removeprefix("ANSWER "))


def run_audit(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """Run `forerun audit`; returns its exit code and its report."""
    command = [sys.executable, "-m", "forerun", "audit", *map(str, arguments), "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode in (0, 1, 2), finished.stderr[-2000:]
    return finished.returncode, json.loads(finished.stdout)


def make_llamas(folder: Path, *, vocab_size: int, heads: int) -> tuple[Path, Path]:
    """A tiny random target model and a smaller draft model, saved for vLLM to load."""
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
