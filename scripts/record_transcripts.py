"""Records transcripts for `forerun replay`: greedy outputs of SmolLM2 in bfloat16, one prompt at a time.

    python scripts/record_transcripts.py tests/data/prompts.jsonl tests/data/transcripts.jsonl

The prompts' categories become the transcripts'. Prompts are sent in SmolLM2's chat template.
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

from forerun.prompts import FilePrompt, read_prompt_file

SCRIPTS = Path(__file__).parent


def main(
    prompts: Annotated[Path, typer.Argument(help="Prompt file.")],
    transcripts: Annotated[Path, typer.Argument(help="Transcript file to write (JSON lines).")],
    max_tokens: Annotated[int, typer.Option(help="Maximum output tokens.")] = 160,
) -> None:
    """Generate an output for every prompt and write it as token ids."""
    done = subprocess.run([sys.executable, SCRIPTS / "models.py"], capture_output=True, text=True, check=True)
    directory = done.stdout.splitlines()[-1]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
    with transcripts.open("w", encoding="utf-8") as out:
        for each in track(read_prompt_file(prompts), description="generating"):
            out.write(json.dumps(transcribe(each, tokenizer, model, max_tokens)) + "\n")


def transcribe(prompt: FilePrompt, tokenizer: Any, model: Any, max_tokens: int) -> dict[str, Any]:
    """The transcript of one prompt."""
    messages = [{"role": "user", "content": prompt.text}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")[
        "input_ids"
    ]
    output = model.generate(ids, max_new_tokens=max_tokens, do_sample=False)[0, ids.shape[1] :].tolist()
    tokens = {"prompt": ids[0].tolist(), "out": output}
    return {"cat": prompt.category, **tokens, "text": tokenizer.decode(output)}


if __name__ == "__main__":
    typer.run(main)
