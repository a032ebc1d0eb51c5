"""Tokens per step of draft trees and draft chains of the same size, sampled from a draft model, float32.

    make bench-sampled-trees ARGS="--draft DIR"

Unseeded requests have sampled trees, verified sibling by sibling; seeded requests have the runners-up of the
race at each position. Counts only: the tokens of an output per forward pass, and their ratio with an interval
over prompts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console

from forerun import LLM, SpeculationConfig
from forerun.bench.provenance import provenance
from forerun.bench.ratios import ratio_of_sums
from forerun.bench.run_facts import PACKAGES
from forerun.bench.suites import Question, read_suite
from forerun.cli.console import report_errors

ROOT: Final = Path(__file__).parents[1]
RECORD: Final = ROOT / "docs/records/sampled-trees.json"
BATCH: Final = 8
"""Requests that decode together; the counts do not depend on it."""


def counts(llm: LLM, prompts: Sequence[Question], seed: int | None, max_tokens: int) -> list[Any]:
    """The statistics of each prompt, in order."""
    messages = [[{"role": "user", "content": each.text}] for each in prompts]
    results = llm.generate(messages, max_tokens=max_tokens, temperature=1.0, seed=seed, ignore_end=True)
    return [result.stats for result in results]


def compare(found: dict[bool, list[Any]]) -> dict[str, Any]:
    """Tokens per step of both shapes; the ratio is that of steps per token."""
    trees, chains = found[True], found[False]
    rates = {
        shape: sum(each.num_tokens for each in stats) / sum(each.num_steps for each in stats)
        for shape, stats in (("trees", trees), ("chains", chains))
    }
    steps = [np.array([each.num_steps / each.num_tokens for each in stats]) for stats in (chains, trees)]
    ratio = ratio_of_sums(*steps)
    sizes = {
        shape: sum(each.num_draft_tokens for each in stats) / sum(each.num_steps for each in stats)
        for shape, stats in (("trees", trees), ("chains", chains))
    }
    return {
        "tokens_per_step": {shape: round(rate, 3) for shape, rate in rates.items()},
        "draft_tokens_per_step": {shape: round(size, 2) for shape, size in sizes.items()},
        "ratio": [round(each, 3) for each in (ratio.value, ratio.low, ratio.high)],
    }


def main(
    model: Annotated[Path, typer.Option(help="Model directory.")],
    draft: Annotated[Path, typer.Option(help="Directory of the draft model.")],
    questions: Annotated[Path, typer.Option(help="Prompts by category.")] = ROOT
    / "tests/data/questions.jsonl",
    per_category: Annotated[int, typer.Option(min=1)] = 3,
    sizes: Annotated[str, typer.Option(help="Draft tokens of a step, comma-separated.")] = "4,8,16",
    max_tokens: Annotated[int, typer.Option(min=1)] = 96,
) -> None:
    """Count; about two minutes for each size and 21 prompts."""
    console = Console(stderr=True)
    with report_errors():
        prompts = read_suite(str(questions), per_category)
        rows = []
        for size in map(int, sizes.split(",")):
            config = SpeculationConfig(adaptive=False, max_draft=size, verifier="rejection")
            llms = {
                tree: LLM(model, f"model:{draft}", dtype="float32", tree=tree, max_batch=BATCH, config=config)
                for tree in (True, False)
            }
            for kind, seed in (("unseeded", None), ("seeded", 7)):
                found = {tree: counts(llm, prompts, seed, max_tokens) for tree, llm in llms.items()}
                rows.append({"requests": kind, "size": size, "num_prompts": len(prompts)} | compare(found))
                console.print(rows[-1], highlight=False)
        settings = {"model": model.name, "draft": draft.name, "dtype": "float32", "temperature": 1.0}
        result = provenance("make bench-sampled-trees", PACKAGES) | {"settings": settings, "rows": rows}
        RECORD.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
