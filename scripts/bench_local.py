"""The local engine beside plain `model.generate` and its prompt lookup: the same prompts, taking turns.

Decoding time runs from the first token to the last; tokens that came with the first are not counted. Plain
decoding and guesses do not always say the same in bfloat16 (near-ties), so what is compared are tokens per
second of each category: all tokens over all seconds. Beside them stands tokens per pass, which has no noise.
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
LOOKED_UP = "prompt lookup"
LOOKUP = 10
"""Tokens that transformers' prompt lookup guesses, as in its documentation."""

THREADS = 2

OFF = 1
"""Prompts of each category that are also asked without guesses."""

Rate = tuple[int, float]
"""Tokens after the first pass, and the seconds they took."""


class Clock:
    """A streamer that notes when tokens come; the prompt comes first."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []

    def put(self, tokens: torch.Tensor) -> None:
        """Some tokens."""
        self.times.append(time.perf_counter())
        self.counts.append(tokens.numel())

    def end(self) -> None:
        """No more."""

    @property
    def rate(self) -> Rate:
        """Tokens and seconds after the first of the answer."""
        return sum(self.counts[2:]), self.times[-1] - self.times[1]


@dataclass
class Contest:
    """Plain and looking-up transformers, and our engine, on one model each."""

    model: Any
    llm: LLM
    max_tokens: int
    temperature: float
    ends: list[int]

    def transformers(self, prompt: Sequence[int], **how: Any) -> tuple[Rate, list[int]]:
        """What transformers takes, and what it says."""
        drawn = {"do_sample": True, "temperature": self.temperature, "top_k": 0} if self.temperature else {}
        config = GenerationConfig(
            max_new_tokens=self.max_tokens,
            pad_token_id=0,
            eos_token_id=None if self.temperature else self.ends,
            **drawn,
            **how,
        )
        clock = Clock()
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=clock
            )
        return clock.rate, out[0, len(prompt) :].tolist()

    def ours(self, prompt: Sequence[int], **how: Any) -> tuple[Rate, list[int], float]:
        """What we take, what we say, and tokens per pass."""
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
        return clock.rate, list(result.token_ids), result.stats.tokens_per_pass


def say_done(line: dict[str, Any]) -> None:
    """A category as it is done, since the whole takes long."""
    Console(stderr=True).print(
        f"{line['name']}: {line['over_plain']:.2f} over plain, {_shown(line['over_lookup'])} over lookup"
    )


def rate_of(rates: Sequence[Rate]) -> float:
    """Tokens per second: all tokens over all seconds."""
    return sum(tokens for tokens, _ in rates) / sum(seconds for _, seconds in rates)


def compare(contest: Contest, by_category: dict[str, list[list[int]]], say: Any) -> list[dict[str, Any]]:
    """A line for each category: rates, their ratios, tokens per pass."""
    first = next(iter(by_category.values()))[0]  # for whatever is made at first use
    contest.transformers(first)
    contest.ours(first)
    lines = []
    for category, prompts in by_category.items():
        rates: dict[str, list[Rate]] = defaultdict(list)
        per_pass, same = [], 0
        for number, prompt in enumerate(prompts):
            say(f"temperature {contest.temperature:g}: {category} {number + 1} of {len(prompts)}")
            rate, plain = contest.transformers(prompt)
            rates["plain"].append(rate)
            if not contest.temperature:
                rate, _ = contest.transformers(prompt, prompt_lookup_num_tokens=LOOKUP)
                rates[LOOKED_UP].append(rate)
            rate, words, tokens = contest.ours(prompt)
            rates["forerun"].append(rate)
            if number < OFF:
                rates["forerun off"].append(contest.ours(prompt, max_draft=0)[0])
            per_pass.append(tokens)
            same += words == plain
        per_second = {who: rate_of(each) for who, each in rates.items()}
        lines.append(
            {
                "name": category,
                "temperature": contest.temperature,
                "prompts": len(prompts),
                "tokens_per_second": per_second,
                "over_plain": per_second["forerun"] / per_second["plain"],
                "off_over_plain": per_second["forerun off"] / rate_of(rates["plain"][:OFF]),
                "over_lookup": per_second["forerun"] / per_second[LOOKED_UP]
                if LOOKED_UP in per_second
                else None,
                "tokens_per_pass": geometric_mean(per_pass),
                "same_words": same,
            }
        )
        say_done(lines[-1])
    return lines


def own_time(llm: LLM, prompts: list[list[int]], batch: int) -> dict[str, Any]:
    """The share of a step that is not a pass of the model, while most of a batch decodes; greedy."""
    engine = llm.engine
    for number in range(batch):
        prompt = tuple(prompts[number % len(prompts)][-16:])  # so that all soon decode
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
    """Tables for people."""
    for temperature in sorted({line["temperature"] for line in lines if "temperature" in line}):
        table = Table(title=f"temperature {temperature:g}, over plain generate")
        for title in ("category", "n", "forerun", "over prompt lookup", "off", "tokens/pass", "same words"):
            table.add_column(title, justify="left" if title == "category" else "right")
        some = [line for line in lines if line.get("temperature") == temperature]
        for line in some:
            table.add_row(
                line["name"],
                str(line["prompts"]),
                f"{line['over_plain']:.2f}",
                _shown(line["over_lookup"]),
                f"{line['off_over_plain']:.2f}",
                f"{line['tokens_per_pass']:.2f}",
                str(line["same_words"]),
            )
        table.add_section()
        keys = ("over_plain", "over_lookup", "off_over_plain", "tokens_per_pass")
        known = [[line[key] for line in some if line[key] is not None] for key in keys]
        means = [geometric_mean(each) if each else None for each in known]
        table.add_row("geometric mean", "", *map(_shown, means), "")
        Console().print(table)
    for line in lines:
        if "share" in line:
            Console().print(f"{line['name']}: {line['share']:.1%} over {line['steps']} steps")


def main(
    model: Annotated[Path, typer.Option(help="The directory of the model.")],
    transcripts: Annotated[Path, typer.Option(help="Whose prompts are asked.")] = ROOT
    / "tests"
    / "data"
    / "transcripts.jsonl",
    prompts: Annotated[int, typer.Option(help="The most prompts of each category.")] = 12,
    tokens: Annotated[int, typer.Option(help="The most tokens of each answer.")] = 256,
    drawn: Annotated[int, typer.Option(help="The most prompts at temperature 1.")] = 4,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Measure, on a machine that does nothing else: half a minute for each prompt of each category."""
    torch.set_num_threads(THREADS)
    by_category: dict[str, list[list[int]]] = defaultdict(list)
    for each in read_transcripts(transcripts):
        by_category[each.category].append(each.prompt.tolist())
    llm = LLM(model, dtype=dtype, max_length=4096)
    plain = load_model(model, llm.engine.target.model.dtype, llm.engine.target.model.device)
    ends = sorted(llm.engine.ends)
    lines: list[dict[str, Any]] = []
    with Console(stderr=True).status("") as status:
        for temperature, num, length in ((0.0, prompts, tokens), (1.0, drawn, 64)):
            if num:
                some = {name: each[:num] for name, each in by_category.items()}
                lines += compare(Contest(plain, llm, length, temperature, ends), some, status.update)
        everything = [prompt for each in by_category.values() for prompt in each[:3]]
        lines += [own_time(llm, everything, batch) for batch in (1, 1, 16, 16)][1::2]
    asked = f"--transcripts {transcripts.name} --prompts {prompts} --tokens {tokens} --drawn {drawn}"
    asked += f" --dtype {dtype}"
    facts = provenance(f'make bench-local ARGS="{asked}"', ["torch", "transformers", "numba"], THREADS)
    finish(lines, facts, show, record, as_json)


if __name__ == "__main__":
    typer.run(main)
