"""Compares run-ahead drafting with sequential drafting in the local engine, float32, one request at a time.

    make bench-run-ahead ARGS="--draft DIR"

Three arms take each prompt in random order, with chains of the same length: run-ahead drafting with the
target on one core and the draft model on another; sequential drafting on the same cores, in turns;
sequential drafting in one process that uses all cores. `--kills` kills the draft model's process instead.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import torch
import typer
from rich.console import Console

from forerun import LLM, SpeculationConfig
from forerun.bench.provenance import provenance
from forerun.bench.ratios import ratio_of_sums
from forerun.bench.run_facts import PACKAGES
from forerun.bench.suites import Question, read_suite
from forerun.cli.console import report_errors
from forerun.drafters.draft_process import DraftProcess
from forerun.drafters.draft_worker import WorkerSettings
from forerun.drafters.run_ahead import MAX_OUTCOMES, load_run_ahead
from forerun.models.runner import Runner
from forerun.types import Draft, RequestView

ROOT: Final = Path(__file__).parents[1]
RECORD: Final = ROOT / "docs/records/run-ahead.json"
"""The record, which is continued."""

MAX_TOKENS: Final = 96
ONE_REQUEST: Final[dict[str, Any]] = {"max_batch": 1, "max_length": 2048}
"""KV cache for one request: that of the default settings takes 6 GB in each of the three engines."""

RUN_AHEAD, IN_TURNS, ALL_CORES = "run-ahead", "in turns", "sequential, all cores"
TARGET_CPU, DRAFT_CPU = 0, 1
"""The cores of the first two arms."""


class TimedProcess(DraftProcess):
    """Records the seconds of each proposal, by whether the draft was prepared; counts those with drafts."""

    def __init__(self, settings: WorkerSettings, **options: Any) -> None:
        super().__init__(settings, **options)
        self.seconds: dict[str, list[float]] = {"hit": [], "miss": []}
        self.num_answered = 0

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """Propose, and record the time; the first proposal of a request is neither hit nor miss."""
        before, began = self.stats, time.perf_counter()
        drafts = super().propose(views, budgets)
        seconds = time.perf_counter() - began
        self.num_answered += any(map(len, drafts))
        if self.stats.num_hits > before.num_hits:
            self.seconds["hit"].append(seconds)
        elif self.stats.num_misses > before.num_misses:
            self.seconds["miss"].append(seconds)
        return drafts


@contextmanager
def cores(cpus: set[int], threads: int) -> Iterator[None]:
    """Run this process on these cores with this number of threads."""
    old = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        os.sched_setaffinity(0, old)
        torch.set_num_threads(len(old))


def settings_of(target: Runner, draft: Path, max_outcomes: int) -> WorkerSettings:
    """A draft model on its own core; without outcomes it prepares nothing."""
    make = partial(
        load_run_ahead,
        str(draft),
        dtype=torch.float32,
        device="cpu",
        vocab_size=target.vocab_size,
        num_slots=target.cache.num_slots,
        max_length=target.max_length,
        max_outcomes=max_outcomes,
    )
    return WorkerSettings(make, 1, frozenset({DRAFT_CPU}))


def make_arms(model: Path, draft: Path, length: int) -> dict[str, tuple[LLM, TimedProcess | None]]:
    """An engine for each arm."""
    config = SpeculationConfig(adaptive=False, max_draft=length)
    all_cores = LLM(model, f"model:{draft}", dtype="float32", tree=False, config=config, **ONE_REQUEST)
    arms: dict[str, tuple[LLM, TimedProcess | None]] = {ALL_CORES: (all_cores, None)}
    for name, outcomes in ((RUN_AHEAD, MAX_OUTCOMES), (IN_TURNS, 0)):
        process = TimedProcess(settings_of(all_cores.engine.target, draft, outcomes))
        arms[name] = LLM(model, process, dtype="float32", tree=False, config=config, **ONE_REQUEST), process
    return arms


def run(llm: LLM, arm: str, prompt: Question, temperature: float) -> Any:
    """One prompt in one arm."""
    every = os.sched_getaffinity(0)
    cpus, threads = (every, len(every)) if arm == ALL_CORES else ({TARGET_CPU}, 1)
    messages = [{"role": "user", "content": prompt.text}]
    seed = None if temperature == 0 else 1
    with cores(cpus, threads):
        (result,) = llm.generate([messages], max_tokens=MAX_TOKENS, temperature=temperature, seed=seed)
    return result


def compare(
    model: Path, draft: Path, prompts: Sequence[Question], length: int, temperature: float
) -> dict[str, Any]:
    """All arms on all prompts."""
    arms = make_arms(model, draft, length)
    for name, (llm, _) in arms.items():
        run(llm, name, prompts[0], temperature)
    rows = []
    for number, prompt in enumerate(prompts):
        results = {
            name: run(arms[name][0], name, prompt, temperature)
            for name in random.Random(number).sample(list(arms), len(arms))  # noqa: S311
        }
        rows.append(
            {
                "category": prompt.category,
                "identical": len({result.token_ids for result in results.values()}) == 1,
                "num_tokens": results[RUN_AHEAD].stats.num_tokens,
                "tokens_per_step": {
                    name: round(result.stats.tokens_per_step, 3) for name, result in results.items()
                },
                "decode_seconds": {
                    name: round(result.stats.seconds - result.stats.ttft_seconds, 4)
                    for name, result in results.items()
                },
            }
        )
        Console(stderr=True).print(rows[-1], highlight=False)
    ahead, turns = (arms[name][1] for name in (RUN_AHEAD, IN_TURNS))
    assert ahead is not None
    assert turns is not None
    found = summary(rows, ahead, turns)
    ahead.close()
    turns.close()
    return {"temperature": temperature, "draft_length": length, "draft": draft.name, **found, "prompts": rows}


def summary(rows: list[dict[str, Any]], ahead: TimedProcess, turns: TimedProcess) -> dict[str, Any]:
    """Ratios of decoding times by category, hit rate, and draft time on hits and misses."""
    ratios = {}
    for category in dict.fromkeys(row["category"] for row in rows):
        seconds = [row["decode_seconds"] for row in rows if row["category"] == category]
        ratios[category] = {
            other: vars_of(
                ratio_of_sums(
                    np.array([each[other] for each in seconds]),
                    np.array([each[RUN_AHEAD] for each in seconds]),
                )
            )
            for other in (IN_TURNS, ALL_CORES)
        }
    hit, fresh = (
        statistics.median(times) if times else 0.0 for times in (ahead.seconds["hit"], turns.seconds["miss"])
    )
    num_hits, num_misses = len(ahead.seconds["hit"]), len(ahead.seconds["miss"])
    return {
        "identical": f"{sum(row['identical'] for row in rows)}/{len(rows)}",
        "hit_rate": round(num_hits / max(num_hits + num_misses, 1), 3),
        "proposals": num_hits + num_misses,
        "median_draft_seconds": {"on a hit": round(hit, 5), "in turns": round(fresh, 5)},
        "hidden_on_hits": round(1 - hit / fresh, 3) if fresh else None,
        "speed_over": ratios,
    }


def vars_of(ratio: Any) -> list[float]:
    """A ratio with its interval."""
    return [round(each, 3) for each in (ratio.value, ratio.low, ratio.high)]


def kill_often(
    model: Path, draft: Path, prompts: Sequence[Question], length: int, num_kills: int
) -> dict[str, Any]:
    """Kill the draft model's process again and again while prompts are decoded; compare the outputs.

    Each process is killed at a random time after its first draft.
    """
    plain = LLM(model, "none", dtype="float32", **ONE_REQUEST)
    settings = settings_of(plain.engine.target, draft, MAX_OUTCOMES)
    process = TimedProcess(settings, max_restart_interval=0.5)
    config = SpeculationConfig(adaptive=False, max_draft=length)
    llm = LLM(model, process, dtype="float32", tree=False, config=config, **ONE_REQUEST)
    killed, stopping = [0], threading.Event()

    def kill() -> None:
        num_answered = 0
        while not stopping.wait(random.uniform(0.05, 0.8)) and killed[0] < num_kills:  # noqa: S311
            if process.num_answered > num_answered:
                num_answered = process.num_answered
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                    killed[0] += 1

    thread = threading.Thread(target=kill)
    thread.start()
    num, num_identical, num_draft_tokens = 0, 0, 0
    while killed[0] < num_kills:
        messages = [{"role": "user", "content": prompts[num % len(prompts)].text}]
        (found,) = llm.generate([messages], max_tokens=MAX_TOKENS, seed=num, temperature=float(num % 2))
        (expected,) = plain.generate([messages], max_tokens=MAX_TOKENS, seed=num, temperature=float(num % 2))
        num, num_identical = num + 1, num_identical + (found.token_ids == expected.token_ids)
        num_draft_tokens += found.stats.num_draft_tokens
    stopping.set()
    thread.join()
    process.close()
    return {
        "kills": killed[0],
        "restarts": process.num_restarts,
        "identical": f"{num_identical}/{num}",
        "draft_tokens": num_draft_tokens,
    }


def main(
    model: Annotated[Path, typer.Option(help="Model directory.")],
    draft: Annotated[Path, typer.Option(help="Directory of the draft model.")],
    questions: Annotated[Path, typer.Option(help="Prompts by category.")] = ROOT
    / "tests/data/questions.jsonl",
    categories: Annotated[str, typer.Option(help="Categories, comma-separated; empty for all.")] = "",
    per_category: Annotated[int, typer.Option(min=1)] = 10,
    length: Annotated[int, typer.Option(min=1, help="Draft tokens of a step.")] = 4,
    temperature: Annotated[str, typer.Option(help="Temperatures, comma-separated; above 0 seeded.")] = "0",
    kills: Annotated[int, typer.Option(min=0, help="Kill the draft process this often instead.")] = 0,
) -> None:
    """Measure on an otherwise idle machine with two cores; 20 prompts take about ten minutes."""
    console = Console(stderr=True)
    with report_errors():
        wanted = {name.strip() for name in categories.split(",") if name.strip()}
        prompts = [
            each for each in read_suite(str(questions), per_category) if not wanted or each.category in wanted
        ]
        runs: list[dict[str, Any]] = json.loads(RECORD.read_text()) if RECORD.exists() else []
        command = f"make bench-run-ahead ARGS='--draft {draft.name} --length {length}'"
        facts = provenance(command, PACKAGES)
        if kills:
            runs.append(facts | {"killed": kill_often(model, draft, prompts, length, kills)})
        for value in [] if kills else map(float, temperature.split(",")):
            runs.append(facts | {"compared": compare(model, draft, prompts, length, value)})
            RECORD.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
        RECORD.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
        last = runs[-1].get("compared") or runs[-1]["killed"]
        console.print({key: value for key, value in last.items() if key != "prompts"}, highlight=False)


if __name__ == "__main__":
    typer.run(main)
