"""Decoding speed with all sources of drafts against lookups alone, in the local engine or in vLLM.

    python scripts/bench_recycling.py TRANSCRIPTS --model DIR --engine vllm

The prompts of a transcript file are generated greedily, one request at a time, with a controller for each
kind of drafts; the kinds take turns on every prompt. In the local engine `model.generate` takes turns too.
Prints the median over prompts, with quartiles, of the ratio of decoding speeds; a prompt's decoding speed is
its tokens after the first, divided by the time after the first. Tokens per step have no noise.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from forerun.engines.vllm.launch import preload_environment

if (preload := preload_environment()) and "LD_PRELOAD" not in os.environ:  # as `forerun serve` sets it
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **preload})  # noqa: S606

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from vllm import SamplingParams

from bench_local import Comparison
from forerun import LLM
from forerun.bench.provenance import provenance
from forerun.bench.replay import geometric_mean
from forerun.bench.transcripts import read_transcripts
from forerun.drafters.static_table_cache import load_static_table
from forerun.drafters.successor_votes import VoteWeights
from forerun.drafters.suffix import SuffixDrafter
from forerun.engines.vllm.lookup_pause import LookupPause
from forerun.engines.vllm.speculation import make_speculator
from forerun.models.loading import load_model
from load_engine import MAX_PROMPT_TOKENS, LoadEngine
from measure_recycling import first_of_each
from records import AsJson, Record, cell, finish, quartiles

GENERATE: Final = "model.generate"
LOOKUPS, ALL = "lookups", "all sources"


class Decoded(NamedTuple):
    """The output of a prompt, the seconds after its first step, and tokens per step after it."""

    tokens: list[int]
    seconds: float
    tokens_per_step: float

    @property
    def speed(self) -> float:
        """Tokens per second after the first token."""
        return (len(self.tokens) - 1) / self.seconds


Decode = Callable[[list[int], int], Decoded]
"""Generates a number of tokens after a prompt."""


def make_drafter(kind: str, model: Path, *, chain: bool) -> SuffixDrafter:
    """The default drafter, with all sources or with lookups alone."""
    if kind == ALL:
        return SuffixDrafter(chain=chain, static_table=load_static_table(str(model)))
    return SuffixDrafter(chain=chain, weights=VoteWeights.of_sources(recycled=False, last_logits=False))


def local_engines(model: Path) -> dict[str, Decode]:
    """The local engine in float32 with both kinds of drafts, and transformers."""

    def decode_with(comparison: Comparison) -> Decode:
        def decode(prompt: list[int], num: int) -> Decoded:
            comparison.max_tokens = num
            (_, seconds), tokens, per_step = comparison.forerun(prompt)
            return Decoded(tokens, seconds, per_step)

        return decode

    def generate(prompt: list[int], num: int) -> Decoded:
        first.max_tokens = num
        (_, seconds), tokens = first.transformers(prompt)
        return Decoded(tokens, seconds, 1.0)

    baseline = load_model(str(model), torch.float32, torch.device("cpu"))
    comparisons = {}
    for kind in (LOOKUPS, ALL):
        llm = LLM(model, make_drafter(kind, model, chain=False), dtype="float32", max_length=2048)
        comparisons[kind] = Comparison(baseline, llm, 1, 0.0, sorted(llm.engine.eos_token_ids))
    first = comparisons[LOOKUPS]
    return {GENERATE: generate} | {kind: decode_with(each) for kind, each in comparisons.items()}


def vllm_engines(model: Path) -> dict[str, Decode]:
    """One vLLM engine on the V1 runner in float32, whose scheduler uses either speculator."""
    engine = LoadEngine(model, "float32", [], max_concurrency=1)
    scheduler = engine.scheduler
    cost = scheduler.speculator.controller.cost
    speculators = {
        kind: make_speculator(
            scheduler.vllm_config,
            scheduler.stats,
            copy.deepcopy(cost),
            {"suffix": make_drafter(kind, model, chain=True)},
        )
        for kind in (LOOKUPS, ALL)
    }
    speculators[LOOKUPS]._learning_from_logits.clear()  # the worker does not record any
    scheduler.static_table.take()  # the server's own table is not used

    def decode_with(kind: str) -> Decode:
        def decode(prompt: list[int], num: int) -> Decoded:
            scheduler._record_finished()
            scheduler.speculator = speculators[kind]
            scheduler.lookup_pause = LookupPause(speculators[kind])
            core = engine.llm.llm_engine
            params = SamplingParams(temperature=0.0, max_tokens=num, ignore_eos=True, detokenize=False)
            core.add_request("one", {"prompt_token_ids": prompt}, params)
            began, num_steps, tokens = 0.0, 0, []
            while core.has_unfinished_requests():
                for output in core.step():
                    tokens = list(output.outputs[0].token_ids)
                if tokens:
                    began, num_steps = began or time.perf_counter(), num_steps + 1
            return Decoded(tokens, time.perf_counter() - began, (len(tokens) - 1) / (num_steps - 1))

        return decode

    return {kind: decode_with(kind) for kind in speculators}


def main(
    transcripts: Annotated[Path, typer.Argument(help="Transcript file; its prompts are used.")],
    model: Annotated[Path, typer.Option(help="Directory of the model, which needs a static table.")],
    engine: Annotated[str, typer.Option(help="local or vllm.")] = "local",
    num_prompts: Annotated[int, typer.Option(help="Prompts per category; one more warms up.")] = 4,
    max_tokens: Annotated[int, typer.Option(help="Output tokens per prompt.")] = 96,
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Measure on an otherwise idle machine."""
    if load_static_table(str(model)) is None:
        raise typer.BadParameter(f"no static table of {model}: run forerun static-table {model}")
    decoders = {"local": local_engines, "vllm": vllm_engines}[engine](model)
    short = [each for each in read_transcripts(transcripts) if len(each.prompt) <= MAX_PROMPT_TOKENS]
    prompts = first_of_each(short, num_prompts + 1)
    found: dict[str, list[dict[str, Decoded]]] = defaultdict(list)
    seen: set[str] = set()
    names = list(decoders)
    for turn, each in enumerate(track(prompts, description=engine, transient=True)):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        decoded = {name: decoders[name](each.prompt.tolist(), max_tokens) for name in order}
        if each.category in seen:  # the first prompt of a category warms up
            found[each.category].append(decoded)
        seen.add(each.category)
    lines = [_line(category, runs) for category, runs in found.items()]
    facts = provenance("scripts/bench_recycling.py", ("torch", "transformers", "vllm-cpu", "numba"))
    facts |= {"engine": engine, "num_prompts": num_prompts, "max_tokens": max_tokens}
    finish(lines, facts, show, record, as_json)


def _line(category: str, runs: list[dict[str, Decoded]]) -> dict[str, Any]:
    """The figures of a category."""
    line: dict[str, Any] = {
        "category": category,
        "num_identical": sum(run[ALL].tokens == run[LOOKUPS].tokens for run in runs),
        "prompts": len(runs),
        "ratio": quartiles([run[ALL].speed / run[LOOKUPS].speed for run in runs]),
        "tokens_per_step": {
            kind: geometric_mean([run[kind].tokens_per_step for run in runs]) for kind in (LOOKUPS, ALL)
        },
    }
    if GENERATE in runs[0]:
        line["speedup"] = {
            kind: quartiles([run[kind].speed / run[GENERATE].speed for run in runs])
            for kind in (LOOKUPS, ALL)
        }
    return line


def show(lines: list[dict[str, Any]]) -> None:
    """Print a table with a row for each category."""
    table = Table("category", "all sources over lookups", "tokens per step", f"over {GENERATE}", "identical")
    for line in lines:
        per_step, speedup = line["tokens_per_step"], line.get("speedup")
        table.add_row(
            line["category"],
            cell(line["ratio"]),
            f"{per_step[LOOKUPS]:.2f}, {per_step[ALL]:.2f}",
            "" if speedup is None else f"{cell(speedup[LOOKUPS])}, {cell(speedup[ALL])}",
            f"{line['num_identical']} of {line['prompts']}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
