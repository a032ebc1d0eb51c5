"""Runs engine programs and servers on the bench, each in its own processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from e2e.engines import TESTS, run_in

INTERPRETER = Path(__file__).parent / "interpreter"

SMALL: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 8,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
    "dtype": "float32",
}
"""Engine options that keep the start and the steps of a tiny model short."""


def bench_environment() -> dict[str, str]:
    """The environment variables of a process on the bench, which its child processes inherit."""
    return {
        "PYTHONPATH": os.pathsep.join(map(str, (INTERPRETER, TESTS))),
        "FORERUN_V2_BENCH": "1",
        "TRITON_INTERPRET": "1",
        "TORCHDYNAMO_DISABLE": "1",  # torch's compiler asks the backend "cpu" for its target
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }


def run_on_bench(name: str, *args: str | Path, **environment: str) -> Any:
    """Run a program of `e2e/programs` on the bench; like `run_program`.

    The engine runs in the program's own process.
    """
    return run_in({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **bench_environment(), **environment}, name, *args)
