"""Compares output and speed of invariant mode in vLLM on a CPU: speculation on and off, 1 and 8 requests.

Prints one JSON line per cell. `num_identical` compares tokens and log-probabilities, exactly, with
non-speculative decoding of single requests in the same engine. With --ordinary the engine runs without the
mode, for its cost. The exit code is 1 if an output of invariant mode differs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}

from e2e.programs.engine_output import Engine
from e2e.programs.invariant import exact_outputs, settings
from e2e.questions import read_questions
from forerun.config import SpeculationConfig
from forerun.engines.vllm.launch import engine_arguments

CONCURRENCY = (1, 8)
MAX_DRAFT = 8


def main(
    model: Annotated[Path, typer.Option(help="Directory of the model.")],
    num_prompts: Annotated[int, typer.Option(help="Questions of all categories.")] = 20,
    max_tokens: Annotated[int, typer.Option(help="Output tokens per prompt.")] = 64,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    ordinary: Annotated[bool, typer.Option("--ordinary", help="Without invariant mode.")] = False,
) -> None:
    """Compare outputs and speed, cell by cell."""
    config = SpeculationConfig(invariant=not ordinary, adaptive=False, max_draft=MAX_DRAFT)
    engine = Engine(
        str(model),
        dtype,
        enable_prefix_caching=False,
        max_model_len=2048,
        max_num_seqs=max(CONCURRENCY),
        kv_cache_memory_bytes=1 << 30,
        **engine_arguments(config, runner="v1"),
    )
    chats = [[{"role": "user", "content": text}] for text in read_questions(num_prompts)]
    expected, differs = None, False
    for max_draft in (0, MAX_DRAFT):
        for concurrency in CONCURRENCY:
            requests = [
                (chat, settings(at, max_draft, max_tokens=max_tokens, temperature=0.8))
                for at, chat in enumerate(chats)
            ]
            before, began = engine.num_accepted, time.perf_counter()
            outputs = exact_outputs(engine.llm.chat, requests, concurrency)
            seconds = time.perf_counter() - began
            expected = expected or outputs
            num_tokens, accepted = sum(map(len, outputs)), engine.num_accepted - before
            num_identical = sum(mine == other for mine, other in zip(outputs, expected, strict=True))
            differs |= num_identical < num_prompts
            line = {
                "mode": "ordinary" if ordinary else "invariant",
                "dtype": dtype,
                "max_draft": max_draft,
                "concurrency": concurrency,
                "num_identical": num_identical,
                "tokens_per_step": round(num_tokens / (num_tokens - accepted), 2),
                "tokens_per_second": round(num_tokens / seconds, 2),
            }
            print(json.dumps(line), flush=True)
    raise typer.Exit(int(differs and not ordinary))


if __name__ == "__main__":
    typer.run(main)
