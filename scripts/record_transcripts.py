"""Record what the model says, token by token, for replaying drafters: greedy, in bfloat16, one at a time.

    python scripts/record_transcripts.py tests/data/prompts.jsonl tests/data/transcripts.jsonl

Prompts are one JSON object a line, `cat` and `text`. SmolLM2's chat template is used.
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
    prompts: Annotated[Path, typer.Argument(help="What to ask.")],
    transcripts: Annotated[Path, typer.Argument(help="Where to write what was answered.")],
    most_tokens: Annotated[int, typer.Option(help="The longest answer.")] = 160,
) -> None:
    """Ask the model every prompt and write its answers as token ids."""
    made = subprocess.run([sys.executable, SCRIPTS / "models.py"], capture_output=True, text=True, check=True)
    directory = made.stdout.splitlines()[-1]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
    rows = [json.loads(line) for line in prompts.read_text(encoding="utf-8").splitlines()]
    with transcripts.open("w", encoding="utf-8") as out:
        for row in track(rows, description="asking"):
            out.write(json.dumps(answer(row, tokenizer, model, most_tokens)) + "\n")


def answer(row: dict[str, str], tokenizer: Any, model: Any, most_tokens: int) -> dict[str, Any]:
    """One transcript."""
    asked = [{"role": "user", "content": row["text"]}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")[
        "input_ids"
    ]
    said = model.generate(prompt, max_new_tokens=most_tokens, do_sample=False)[0, prompt.shape[1] :].tolist()
    return {"cat": row["cat"], "prompt": prompt[0].tolist(), "out": said, "text": tokenizer.decode(said)}


if __name__ == "__main__":
    typer.run(main)
