"""Records transcripts for `forerun replay`: outputs of SmolLM2 without speculation.

    python scripts/record_transcripts.py tests/data/prompts.jsonl tests/data/transcripts.jsonl

The prompts' categories become the transcripts'. Prompts are sent in SmolLM2's chat template. In float32 the
outputs do not depend on the concurrency.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from forerun import LLM
from forerun.prompts import read_prompt_file

SCRIPTS = Path(__file__).parent


def main(
    prompts: Annotated[Path, typer.Argument(help="Prompt file.")],
    transcripts: Annotated[Path, typer.Argument(help="Transcript file to write (JSON lines).")],
    max_tokens: Annotated[int, typer.Option(help="Maximum output tokens.")] = 160,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; every prompt has seed 0.")] = 0.0,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    concurrency: Annotated[int, typer.Option(help="Prompts decoded at once.")] = 1,
) -> None:
    """Generate an output for every prompt and write it as token ids."""
    done = subprocess.run([sys.executable, SCRIPTS / "models.py"], capture_output=True, text=True, check=True)
    llm = LLM(done.stdout.splitlines()[-1], "none", dtype=dtype, max_batch=concurrency, max_length=4096)
    every = read_prompt_file(prompts)
    with transcripts.open("w", encoding="utf-8") as out:
        for begin in track(range(0, len(every), concurrency), description="generating"):
            batch = every[begin : begin + concurrency]
            ids = [chat_ids(llm.tokenizer, each.text) for each in batch]
            results = llm.generate(ids, max_tokens=max_tokens, temperature=temperature, seed=0)
            for each, prompt, result in zip(batch, ids, results, strict=True):
                line = {"cat": each.category, "prompt": prompt, "out": list(result.token_ids)}
                out.write(json.dumps({**line, "text": result.text}) + "\n")


def chat_ids(tokenizer: Any, text: str) -> list[int]:
    """The token ids of a question in the model's chat template."""
    messages = [{"role": "user", "content": text}]
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    return ids


if __name__ == "__main__":
    typer.run(main)
