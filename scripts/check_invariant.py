"""Compares outputs of the local engine's invariant mode: speculation on and off, batches, drafters.

Prints one JSON line per cell and appends it to the record, if one is given; an interrupted run continues
there. `num_identical` compares with non-speculative decoding of single requests in the same mode. The cell
`sabotaged` runs one linear layer with a kernel that depends on the number of rows, and must differ. The exit
code is 1 if an invariant cell differs, or if the sabotaged one does not. `bench_invariant.py` measures the
cost of the mode.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from e2e.questions import read_questions
from forerun import LLM
from forerun.bench.provenance import provenance
from forerun.config import SpeculationConfig
from forerun.models.loading import load_model
from integration.local_models import OwnLinear

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "top_p": 0.95, "seed": 7},
}


FIXED_LENGTH = SpeculationConfig(adaptive=False, max_draft=3)
"""For the draft model: the controller would not use one that is nearly as slow as its target."""


@dataclass(frozen=True)
class Cell:
    """One way to decode all prompts."""

    mode: str
    drafter: str
    tree: bool
    batch: int
    settings: str


def all_cells(batches: list[int], draft_model: Path | None) -> Iterator[Cell]:
    """The baseline of each setting first, then every other cell, from the largest batch to the smallest."""
    drafters = ["suffix", *([f"model:{draft_model}"] if draft_model else [])]
    for settings in SETTINGS:
        yield Cell("invariant", "none", False, 1, settings)
    yield Cell("sabotaged", "suffix", True, max(batches), "greedy")
    for batch in sorted(batches, reverse=True):
        for settings in SETTINGS:
            if batch > 1:
                yield Cell("invariant", "none", False, batch, settings)
            for drafter, tree in product(drafters, (True, False)):
                yield Cell("invariant", drafter, tree, batch, settings)


def run(cell: Cell, model: Path, dtype: str, prompts: list[Any], max_tokens: int) -> dict[str, Any]:
    """Decode all prompts; returns digests of the outputs, counts and seconds."""
    llm = LLM(
        model,
        cell.drafter,
        dtype=dtype,
        max_batch=cell.batch,
        max_length=2048,
        tree=cell.tree,
        invariant=True,
        config=FIXED_LENGTH if cell.drafter.startswith("model:") else None,
    )
    if cell.mode == "sabotaged":
        original = load_model(model, llm.engine.target.model.dtype).model.layers[0].mlp.down_proj
        llm.engine.target.model.model.layers[0].mlp.down_proj = OwnLinear.of(original)
    began = time.perf_counter()
    results = llm.generate(prompts, max_tokens=max_tokens, **SETTINGS[cell.settings])
    seconds = time.perf_counter() - began
    num_tokens = sum(result.stats.num_tokens for result in results)
    return {
        **asdict(cell),
        "drafter": cell.drafter.partition(":")[0],
        "num_tokens": num_tokens,
        "tokens_per_step": round(num_tokens / sum(result.stats.num_steps for result in results), 2),
        "tokens_per_second": round(num_tokens / seconds, 2),
        "digests": [digest(result.token_ids) for result in results],
    }


def digest(tokens: tuple[int, ...]) -> str:
    """A short digest of an output."""
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:12]


def read_lines(record: Path | None) -> list[dict[str, Any]]:
    """The cells that are in the record already."""
    if record is None or not record.exists():
        return []
    return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()][1:]


def key(line: dict[str, Any]) -> tuple[Any, ...]:
    """The cell of a line."""
    return tuple(line[name] for name in ("mode", "drafter", "tree", "batch", "settings"))


def main(
    model: Annotated[Path, typer.Option(help="Directory of the model.")],
    draft_model: Annotated[Path | None, typer.Option(help="Directory of a draft model.")] = None,
    num_prompts: Annotated[int, typer.Option(help="Questions of all categories.")] = 40,
    max_tokens: Annotated[int, typer.Option(help="Output tokens per prompt.")] = 128,
    batch: Annotated[list[int] | None, typer.Option(help="Requests decoded at once; 1, 4 and 16.")] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    record: Annotated[Path | None, typer.Option(help="A file of JSON lines to write and continue.")] = None,
) -> None:
    """Compare outputs, cell by cell."""
    prompts = [[{"role": "user", "content": text}] for text in read_questions(num_prompts)]
    lines = read_lines(record)
    if record is not None and not record.exists():
        facts = provenance("make check-invariant", ("forerun", "torch", "transformers"))
        facts |= {"dtype": dtype, "num_prompts": num_prompts, "max_tokens": max_tokens}
        record.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    for cell in all_cells(batch or [1, 4, 16], draft_model):
        if key({**asdict(cell), "drafter": cell.drafter.partition(":")[0]}) in map(key, lines):
            continue
        line = run(cell, model, dtype, prompts, max_tokens)
        baseline = next(
            (each for each in lines if key(each) == ("invariant", "none", False, 1, cell.settings)), line
        )
        pairs = zip(line["digests"], baseline["digests"], strict=True)
        line["num_identical"] = sum(mine == expected for mine, expected in pairs)
        lines.append(line)
        print(json.dumps({name: value for name, value in line.items() if name != "digests"}), flush=True)
        if record is not None:
            with record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    differs = {line["mode"] for line in lines if line["num_identical"] < num_prompts}
    raise typer.Exit(int("invariant" in differs or "sabotaged" not in differs))


if __name__ == "__main__":
    typer.run(main)
