"""Times invariant mode of the local engine against the ordinary one, with and without speculation, by batch.

Both engines run in one process, on the same prompts; the four ways to decode take turns in every round, each
round with other prompts. Outputs have a fixed length. Prints medians with quartiles of the ratios per round:
the cost of the mode (non-speculative decoding, invariant over ordinary), and the speedup of speculation in
invariant mode over non-speculative decoding in either mode.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from e2e.questions import read_questions
from forerun import LLM
from forerun.bench.provenance import provenance
from records import AsJson, Record, cell, finish, quartiles

BATCHES: Final = (1, 4, 16)
WAYS: Final = (("ordinary", 0), ("invariant", 0), ("ordinary", None), ("invariant", None))
"""Mode and maximum draft length; None is the default."""

RATIOS: Final = {
    "cost of the mode: invariant over ordinary, no speculation": (("invariant", 0), ("ordinary", 0)),
    "speculation in invariant mode over no speculation in it": (("invariant", None), ("invariant", 0)),
    "speculation in invariant mode over ordinary, no speculation": (("invariant", None), ("ordinary", 0)),
    "speculation over no speculation, ordinary mode": (("ordinary", None), ("ordinary", 0)),
}


def main(
    model: Annotated[Path, typer.Option(help="Directory of the model.")],
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    rounds: Annotated[int, typer.Option(help="Rounds per batch size.")] = 8,
    max_tokens: Annotated[int, typer.Option(help="Output tokens per prompt.")] = 64,
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Time all ways to decode, for every batch size."""
    chats = [[{"role": "user", "content": text}] for text in read_questions(40)]
    llms = {
        mode: LLM(model, dtype=dtype, max_batch=max(BATCHES), max_length=1024, invariant=mode == "invariant")
        for mode in ("ordinary", "invariant")
    }
    lines = []
    for batch in BATCHES:
        speeds: dict[Any, list[float]] = {way: [] for way in WAYS}
        for number in track(range(-1, rounds), description=f"batch of {batch}", transient=True):
            group = [chats[(number * batch + at) % len(chats)] for at in range(batch)]
            for turn in range(len(WAYS)):
                way = WAYS[(turn + number) % len(WAYS)]
                speed = tokens_per_second(llms[way[0]], group, way[1], max_tokens)
                if number >= 0:  # the first round warms up
                    speeds[way].append(speed)
        for name, (upper, lower) in RATIOS.items():
            ratios = [mine / other for mine, other in zip(speeds[upper], speeds[lower], strict=True)]
            lines.append({"batch": batch, "name": name, "measured": quartiles(ratios)})
        print(
            {
                f"{mode}, max_draft {length}": round(quartiles(speeds[mode, length])[0], 1)
                for mode, length in WAYS
            },
            file=sys.stderr,
        )
    facts = provenance("make bench-invariant", ("forerun", "torch", "transformers"))
    facts |= {"dtype": dtype, "rounds": rounds, "max_tokens": max_tokens}
    finish(lines, facts, show, record, as_json)


def tokens_per_second(llm: LLM, prompts: list[Any], max_draft: int | None, max_tokens: int) -> float:
    """Throughput of prompts that are decoded together, prefill included."""
    began = time.perf_counter()
    results = llm.generate(prompts, max_tokens=max_tokens, max_draft=max_draft, ignore_end=True)
    return sum(len(result.token_ids) for result in results) / (time.perf_counter() - began)


def show(lines: list[dict[str, Any]]) -> None:
    """Print a table with a row for each ratio and a column for each batch size."""
    table = Table("throughput", *(f"batch {batch}" for batch in BATCHES))
    for name in RATIOS:
        table.add_row(name, *(cell(line["measured"]) for line in lines if line["name"] == name))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
