"""Tokens per step of the local engine by the sources of its drafts, with a fixed number of draft tokens.

    python scripts/measure_recycling.py TRANSCRIPTS --record docs/records/recycling.json

The prompts of a transcript file (`scripts/record_transcripts.py`) are generated anew, one at a time, greedily
and at temperature 1 with a seed per prompt. In float32 the outputs of all sources are identical, which is
checked, so the figures have no noise. Unlike a replay, the engine recycles the logits of rejected rows.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun import LLM
from forerun.bench.provenance import provenance
from forerun.bench.replay import geometric_mean
from forerun.bench.transcripts import Transcript, read_transcripts
from forerun.config import SpeculationConfig
from forerun.drafters.static_table_cache import load_static_table
from forerun.drafters.successor_votes import VoteWeights
from forerun.drafters.suffix import SuffixDrafter
from records import AsJson, Record, finish

MAX_TOKENS: Final = 160
"""Output tokens per prompt."""

SOURCES: Final = {
    "suffix": (False, False, False),
    "suffix, static": (True, False, False),
    "suffix, static, recycled": (True, True, False),
    "all sources": (True, True, True),
}
"""Whether the static table, recycled logits and the last logits are used."""


def main(
    transcripts: Annotated[Path, typer.Argument(help="Transcript file; its prompts are used.")],
    model: Annotated[Path, typer.Option(help="Directory of the model, which needs a static table.")],
    num_prompts: Annotated[int, typer.Option(help="Prompts per category.")] = 4,
    nodes: Annotated[int, typer.Option(help="Draft tokens per step.")] = 16,
    sources: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(SOURCES)}.")] = None,
    chain: Annotated[bool, typer.Option("--chain", help="Draft chains instead of trees.")] = False,
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Measure tokens per step by category, temperature and sources."""
    table = load_static_table(model)
    if table is None:
        raise typer.BadParameter(f"no static table of {model}: run forerun static-table {model}")
    prompts = first_of_each(read_transcripts(transcripts), num_prompts)
    lines: list[dict[str, Any]] = []
    outputs: dict[float, list[Any]] = {}
    for temperature in (0.0, 1.0):
        for name in sources or SOURCES:
            static, recycled, last_logits = SOURCES[name]
            drafter = SuffixDrafter(
                chain=chain,
                static_table=table if static else None,
                weights=VoteWeights.of_sources(recycled=recycled, last_logits=last_logits),
            )
            config = SpeculationConfig(adaptive=False, max_draft=nodes)
            llm = LLM(model, drafter, dtype="float32", max_batch=1, tree=not chain, config=config)
            found, output = tokens_per_step(llm, prompts, temperature, name)
            same = output == outputs.setdefault(temperature, output)
            lines.append(
                {"sources": name, "temperature": temperature, "identical": same, "tokens_per_step": found}
            )
    facts = provenance("scripts/measure_recycling.py", ("forerun", "torch", "transformers"))
    facts |= {"num_prompts": num_prompts, "max_tokens": MAX_TOKENS, "nodes": nodes, "chain": chain}
    finish(lines, facts, show, record, as_json)
    raise typer.Exit(int(not all(line["identical"] for line in lines)))


def first_of_each(transcripts: list[Transcript], num: int) -> list[Transcript]:
    """The first transcripts of each category."""
    seen: Counter[str] = Counter()
    chosen = []
    for each in transcripts:
        seen[each.category] += 1
        if seen[each.category] <= num:
            chosen.append(each)
    return chosen


def tokens_per_step(
    llm: LLM, prompts: list[Transcript], temperature: float, name: str
) -> tuple[dict[str, float], list[Any]]:
    """Tokens per step after the first token, by category, and the outputs."""
    tokens: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    outputs = []
    for seed, each in enumerate(
        track(prompts, description=f"{name}, temperature {temperature}", transient=True)
    ):
        (result,) = llm.generate(
            [each.prompt.tolist()], max_tokens=MAX_TOKENS, temperature=temperature, seed=seed
        )
        tokens[each.category] += result.stats.num_tokens - 1
        steps[each.category] += result.stats.num_steps - 1
        outputs.append(result.token_ids)
    return {name: tokens[name] / steps[name] for name in tokens}, outputs


def show(lines: list[dict[str, Any]]) -> None:
    """Print a table with a row for each kind of drafts."""
    categories = list(lines[0]["tokens_per_step"])
    table = Table("temperature", "sources", *categories, "geometric mean")
    for line in lines:
        found = line["tokens_per_step"]
        cells = [f"{found[name]:.2f}" for name in categories]
        table.add_row(
            str(line["temperature"]), line["sources"], *cells, f"{geometric_mean(found.values()):.3f}"
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
