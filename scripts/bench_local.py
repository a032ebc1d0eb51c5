"""Compares the local engine with `model.generate` and its prompt lookup, interleaved on the same prompts.

Decoding time runs from the first token to the last; tokens that arrive with the first are not counted. In
bfloat16 the outputs can diverge at near-ties, so the comparison uses tokens per second of each category: all
tokens divided by all seconds. Tokens per step, which have no noise, are reported as well.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import GenerationConfig

from forerun import LLM, SamplingParams
from forerun.bench.provenance import provenance
from forerun.bench.replay import geometric_mean
from forerun.bench.transcripts import read_transcripts
from forerun.engines.local.request import Request
from forerun.models.loading import load_model
from records import AsJson, Record, finish

ROOT = Path(__file__).parents[1]
PROMPT_LOOKUP = "prompt lookup"
LOOKUP_DRAFT_TOKENS = 10
"""Draft tokens of transformers' prompt lookup, as in its documentation."""

THREADS = 2

PROMPTS_WITHOUT_SPECULATION = 1
"""Prompts per category that are also run with speculation off."""

Rate = tuple[int, float]
"""Tokens after the first step, and their seconds."""


class Clock:
    """A streamer that records arrival times; the prompt arrives first."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []

    def put(self, tokens: torch.Tensor) -> None:
        """Record the arrival of tokens."""
        self.times.append(time.perf_counter())
        self.counts.append(tokens.numel())

    def end(self) -> None:
        """Required by the streamer interface."""

    @property
    def rate(self) -> Rate:
        """Tokens and seconds after the first output token."""
        return sum(self.counts[2:]), self.times[-1] - self.times[1]


@dataclass
class Comparison:
    """transformers, with and without prompt lookup, and the local engine, each with a model instance."""

    model: Any
    llm: LLM
    max_tokens: int
    temperature: float
    ends: list[int]

    def transformers(self, prompt: Sequence[int], **how: Any) -> tuple[Rate, list[int]]:
        """Speed and output of transformers."""
        sampling = (
            {"do_sample": True, "temperature": self.temperature, "top_k": 0} if self.temperature else {}
        )
        config = GenerationConfig(
            max_new_tokens=self.max_tokens,
            pad_token_id=0,
            eos_token_id=None if self.temperature else self.ends,
            **sampling,
            **how,
        )
        clock = Clock()
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=clock
            )
        return clock.rate, out[0, len(prompt) :].tolist()

    def forerun(self, prompt: Sequence[int], **how: Any) -> tuple[Rate, list[int], float]:
        """Speed, output and tokens per step of the local engine."""
        engine = self.llm.engine
        engine.add(
            Request(
                "bench",
                tuple(prompt),
                max_tokens=self.max_tokens,
                sampling=SamplingParams(temperature=self.temperature),
                ignore_end=bool(self.temperature),
                **how,
            )
        )
        clock = Clock()
        clock.put(torch.empty(0))
        for update in engine.stream():
            clock.put(torch.tensor(update.token_ids))
            result = update.result
        assert result is not None
        return clock.rate, list(result.token_ids), result.stats.tokens_per_step


def print_category(line: dict[str, Any]) -> None:
    """Print a finished category; the whole run takes long."""
    Console(stderr=True).print(
        f"{line['name']}: speedup {line['speedup']:.2f}, {_shown(line['over_lookup'])} over prompt lookup"
    )


def rate_of(rates: Sequence[Rate]) -> float:
    """Tokens per second: all tokens divided by all seconds."""
    return sum(tokens for tokens, _ in rates) / sum(seconds for _, seconds in rates)


def compare(
    comparison: Comparison, by_category: dict[str, list[list[int]]], report: Any
) -> list[dict[str, Any]]:
    """One line per category: speeds, their ratios, tokens per step."""
    first = next(iter(by_category.values()))[0]  # warm-up: the first use compiles
    comparison.transformers(first)
    comparison.forerun(first)
    lines = []
    for category, prompts in by_category.items():
        rates: dict[str, list[Rate]] = defaultdict(list)
        tokens_per_step, num_identical = [], 0
        for number, prompt in enumerate(prompts):
            report(f"temperature {comparison.temperature:g}: {category} {number + 1} of {len(prompts)}")
            rate, baseline = comparison.transformers(prompt)
            rates["baseline"].append(rate)
            if not comparison.temperature:
                rate, _ = comparison.transformers(prompt, prompt_lookup_num_tokens=LOOKUP_DRAFT_TOKENS)
                rates[PROMPT_LOOKUP].append(rate)
            rate, output, tokens = comparison.forerun(prompt)
            rates["forerun"].append(rate)
            if number < PROMPTS_WITHOUT_SPECULATION:
                rates["forerun off"].append(comparison.forerun(prompt, max_draft=0)[0])
            tokens_per_step.append(tokens)
            num_identical += output == baseline
        per_second = {system: rate_of(each) for system, each in rates.items()}
        lines.append(
            {
                "name": category,
                "temperature": comparison.temperature,
                "prompts": len(prompts),
                "tokens_per_second": per_second,
                "speedup": per_second["forerun"] / per_second["baseline"],
                "off_speedup": per_second["forerun off"]
                / rate_of(rates["baseline"][:PROMPTS_WITHOUT_SPECULATION]),
                "over_lookup": per_second["forerun"] / per_second[PROMPT_LOOKUP]
                if PROMPT_LOOKUP in per_second
                else None,
                "tokens_per_step": geometric_mean(tokens_per_step),
                "num_identical": num_identical,
            }
        )
        print_category(lines[-1])
    return lines


def own_time(llm: LLM, prompts: list[list[int]], batch: int) -> dict[str, Any]:
    """The share of a step outside the model's forward pass, while most of a greedy batch decodes."""
    engine = llm.engine
    for number in range(batch):
        prompt = tuple(prompts[number % len(prompts)][-16:])  # a short prefill
        engine.add(Request(str(number), prompt, max_tokens=128, ignore_end=True))
    shares = []
    while engine.num_unfinished:
        steps, passes = engine.seconds, engine.target.seconds
        if len(engine.step()) >= 0.75 * batch:
            shares.append(1 - (engine.target.seconds - passes) / (engine.seconds - steps))
    return {
        "name": f"own share of a step, batch {batch}",
        "share": statistics.median(shares) if shares else math.nan,
        "steps": len(shares),
    }


def _shown(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def show(lines: list[dict[str, Any]]) -> None:
    """Print the tables."""
    for temperature in sorted({line["temperature"] for line in lines if "temperature" in line}):
        table = Table(title=f"temperature {temperature:g}, relative to model.generate")
        for title in ("category", "n", "forerun", "over prompt lookup", "off", "tokens/step", "identical"):
            table.add_column(title, justify="left" if title == "category" else "right")
        some = [line for line in lines if line.get("temperature") == temperature]
        for line in some:
            table.add_row(
                line["name"],
                str(line["prompts"]),
                f"{line['speedup']:.2f}",
                _shown(line["over_lookup"]),
                f"{line['off_speedup']:.2f}",
                f"{line['tokens_per_step']:.2f}",
                str(line["num_identical"]),
            )
        table.add_section()
        keys = ("speedup", "over_lookup", "off_speedup", "tokens_per_step")
        known = [[line[key] for line in some if line[key] is not None] for key in keys]
        means = [geometric_mean(each) if each else None for each in known]
        table.add_row("geometric mean", "", *map(_shown, means), "")
        Console().print(table)
    for line in lines:
        if "share" in line:
            Console().print(f"{line['name']}: {line['share']:.1%} over {line['steps']} steps")


def main(
    model: Annotated[Path, typer.Option(help="Model directory.")],
    transcripts: Annotated[Path, typer.Option(help="Transcripts whose prompts are used.")] = ROOT
    / "tests"
    / "data"
    / "transcripts.jsonl",
    num_prompts: Annotated[int, typer.Option(help="Maximum prompts per category, greedy.")] = 12,
    max_tokens: Annotated[int, typer.Option(help="Maximum output tokens, greedy.")] = 256,
    num_sampled: Annotated[int, typer.Option(help="Maximum prompts per category at temperature 1.")] = 4,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Measure on an otherwise idle machine: half a minute per prompt and category."""
    torch.set_num_threads(THREADS)
    by_category: dict[str, list[list[int]]] = defaultdict(list)
    for each in read_transcripts(transcripts):
        by_category[each.category].append(each.prompt.tolist())
    llm = LLM(model, dtype=dtype, max_length=4096)
    baseline = load_model(model, llm.engine.target.model.dtype, llm.engine.target.model.device)
    ends = sorted(llm.engine.eos_token_ids)
    lines: list[dict[str, Any]] = []
    with Console(stderr=True).status("") as status:
        for temperature, num, length in ((0.0, num_prompts, max_tokens), (1.0, num_sampled, 64)):
            if num:
                some = {name: each[:num] for name, each in by_category.items()}
                lines += compare(Comparison(baseline, llm, length, temperature, ends), some, status.update)
        everything = [prompt for each in by_category.values() for prompt in each[:3]]
        lines += [own_time(llm, everything, batch) for batch in (1, 1, 16, 16)][1::2]
    arguments = f"--transcripts {transcripts.name} --num-prompts {num_prompts} --max-tokens {max_tokens}"
    arguments += f" --num-sampled {num_sampled} --dtype {dtype}"
    facts = provenance(f'make bench-local ARGS="{arguments}"', ["torch", "transformers", "numba"], THREADS)
    finish(lines, facts, show, record, as_json)


if __name__ == "__main__":
    typer.run(main)
