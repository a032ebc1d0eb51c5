"""Records logits for `forerun replay --sources`: the likeliest next tokens of SmolLM2 at every position.

    python scripts/record_logits.py transcripts.jsonl

writes transcripts.logits.npz, computed in float32: ten tokens for every position of every transcript, and the
rows of the static table for the tokens in it. A hundred transcripts take a few minutes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.progress import track

from forerun.bench.recorded_logits import RecordedLogits
from forerun.bench.transcripts import read_transcripts
from forerun.core.top_tokens import top_tokens
from forerun.drafters.static_table import StaticTable
from forerun.engines.local.static_table_builder import build_static_table, neutral_context
from forerun.models.input_rows import InputRows
from forerun.models.loading import load_model, load_tokenizer
from forerun.models.runner import Runner
from forerun.types import IntArray

SCRIPTS = Path(__file__).parent

NUM_RECORDED = 10
"""Tokens recorded per position."""

NUM_STATIC = 5
"""Successors of every position whose rows of the static table are recorded too."""

ROWS_PER_PASS = 256


def main(
    transcripts: Annotated[Path, typer.Argument(help="Transcript file (JSON lines).")],
    model: Annotated[Path | None, typer.Option(help="Directory of the model; SmolLM2 by default.")] = None,
) -> None:
    """Write the likeliest next tokens at all positions of a file of transcripts."""
    directory = str(model or _smollm2())
    runner = Runner(load_model(directory, torch.float32, torch.device("cpu")), num_slots=2, max_length=8192)
    texts = [each.tokens for each in read_transcripts(transcripts)]
    rows = [_likeliest(runner, text) for text in track(texts, description="recording")]
    tokens, probs = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    table = StaticTable(runner.vocab_size)
    needed = np.unique(np.concatenate([*texts, tokens[:, :NUM_STATIC].ravel()])).astype(np.int64)
    with typer.progressbar(length=len(needed), label="static table") as bar:
        context = neutral_context(load_tokenizer(directory))
        build_static_table(runner, context, table, needed, lambda num: bar.update(num - bar.pos))
    RecordedLogits(
        offsets=np.cumsum([0, *map(len, texts)]),
        tokens=tokens,
        probs=probs,
        static_rows=needed.astype(np.int32),
        static_table=table,
    ).write(transcripts.with_suffix(".logits.npz"))


def _likeliest(runner: Runner, text: IntArray) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest tokens after each token of a text, and their probabilities."""
    slot = runner.allocate()
    parts = []
    for first in range(0, len(text), ROWS_PER_PASS):
        chunk = text[first : first + ROWS_PER_PASS]
        logits = runner.forward([InputRows(slot, chunk, num_logits=len(chunk))])
        runner.commit({slot: range(len(chunk))})
        parts.append(top_tokens(logits, NUM_RECORDED))
    runner.free(slot)
    tokens, probs = (np.concatenate(each) for each in zip(*parts, strict=True))
    return tokens, probs


def _smollm2() -> str:
    """The directory of the test model."""
    done = subprocess.run([sys.executable, SCRIPTS / "models.py"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    typer.run(main)
