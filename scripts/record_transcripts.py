"""Records transcripts for `forerun replay`: greedy outputs of SmolLM2 in bfloat16, one prompt at a time.

    python scripts/record_transcripts.py tests/data/prompts.jsonl tests/data/transcripts.jsonl

Prompts are JSON lines with `cat` and `text`. They are sent in SmolLM2's chat template.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from transformers import AutoModelForCausalLM, AutoTokenizer

SCRIPTS = Path(__file__).parent


def main(
    prompts: Annotated[Path, typer.Argument(help="Prompt file (JSON lines).")],
    transcripts: Annotated[Path, typer.Argument(help="Transcript file to write (JSON lines).")],
    max_tokens: Annotated[int, typer.Option(help="Maximum output tokens.")] = 160,
) -> None:
    """Generate an output for every prompt and write it as token ids."""
    done = subprocess.run([sys.executable, SCRIPTS / "models.py"], capture_output=True, text=True, check=True)
    directory = done.stdout.splitlines()[-1]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
    rows = [json.loads(line) for line in prompts.read_text(encoding="utf-8").splitlines()]
    with transcripts.open("w", encoding="utf-8") as out:
        for row in track(rows, description="generating"):
            out.write(json.dumps(transcribe(row, tokenizer, model, max_tokens)) + "\n")


def transcribe(row: dict[str, str], tokenizer: Any, model: Any, max_tokens: int) -> dict[str, Any]:
    """The transcript of one prompt."""
    messages = [{"role": "user", "content": row["text"]}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")[
        "input_ids"
    ]
    output = model.generate(prompt, max_new_tokens=max_tokens, do_sample=False)[0, prompt.shape[1] :].tolist()
    return {"cat": row["cat"], "prompt": prompt[0].tolist(), "out": output, "text": tokenizer.decode(output)}


if __name__ == "__main__":
    typer.run(main)
