"""Measures decoding throughput under load in one vLLM engine, with and without speculation.

    make bench-load ARGS="--dtype bfloat16 --concurrency 1,16"

The number of requests in flight is constant: a new one replaces each that finishes, until all counted
requests are complete, and filler requests keep up the load behind them. Only steps in which every request
decodes and none prefills are used. Decoding modes take turns within a cell. Each has its own controller, so
that none learns from the steps of another.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any, Final

from forerun.engines.vllm.launch import preload_environment

if (preload := preload_environment()) and "LD_PRELOAD" not in os.environ:  # as `forerun serve` sets it
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **preload})  # noqa: S606

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler must be in this process
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # cost curves learnt here must not be reused
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from vllm import SamplingParams

from forerun.bench.figures.load import draw_load
from forerun.bench.load import BASELINE, FORERUN, LoadRun, from_rows, to_rows
from forerun.bench.load_table import lines_of
from forerun.bench.provenance import provenance
from forerun.bench.suites import CODE_EDITING
from forerun.rendering.plots import write_figure
from load_engine import MAX_CONCURRENCY, LoadEngine, time_stock_scheduler
from records import Record

ROOT = Path(__file__).parents[1]
FIXED: Final = "2,4,8,16"
WAVES: Final = 2
"""Counted requests of a run, per concurrent request."""

SINGLE_REQUEST_TURNS: Final = 3
"""Factor on the number of turns at concurrency 1. Turns are short there, because machine speed is equal for
all modes only within a short turn, and acceptance varies strongly between texts.
"""

WARM_UP_REQUESTS: Final = 16
"""Warm-up requests of every text."""

MAX_TOKENS: Final = 64
"""Maximum output tokens of a request."""


def texts(engine: LoadEngine, questions: Path) -> dict[str, tuple[list[list[int]], SamplingParams]]:
    """Prompts and sampling settings by text name."""
    noise = np.random.default_rng(0).integers(100, 40000, (12, 256)).tolist()

    def settings(**given: Any) -> SamplingParams:
        return SamplingParams(max_tokens=MAX_TOKENS, detokenize=False, **given)

    found = {}
    for title, suite, category in (
        ("code editing", CODE_EDITING, CODE_EDITING),
        ("chat", str(questions), "mt-bench"),
    ):
        prompts = engine.prompts(suite, category)
        for temperature in (0, 1):
            found[f"{title}, temperature {temperature}"] = (prompts, settings(temperature=temperature))
    return found | {"random tokens": (noise, settings(temperature=2.0))}


def modes_of(text: str, concurrency: int, engine: LoadEngine) -> list[str]:
    """Fixed lengths run only where they are a realistic choice: greedy, at concurrency 1 and 16."""
    every = text.endswith("temperature 0") and concurrency in {1, 16}
    return list(engine.modes) if every else [FORERUN, BASELINE]


def family(dtype: str, text: str) -> str:
    """The group of cells whose steps cost the same for the same number of rows."""
    kind = "random" if text.startswith("random") else "greedy" if text.endswith("0") else "sampled"
    return f"{dtype}, {kind}"


def cell_name(dtype: str, text: str, concurrency: int) -> str:
    """The name of a cell in the record."""
    return f"{dtype} | {text} | {concurrency}"


def warm_up(engine: LoadEngine, cells: dict[str, Any], progress: Progress) -> None:
    """Run requests that are not counted; the learnt state persists, as in a server."""
    task = progress.add_task("warming up", total=len(cells))
    for prompts, params in cells.values():
        engine.run(FORERUN, prompts[:WARM_UP_REQUESTS], params, 4)
        progress.advance(task)


def measure(
    engine: LoadEngine, cells: dict[tuple[str, str, int], Any], turns: int, progress: Progress
) -> Iterator[list[LoadRun]]:
    """Run every cell, turn by turn; forerun has one uncounted turn before the first."""
    task = progress.add_task("", total=len(cells))
    for (dtype, text, concurrency), (prompts, params) in cells.items():
        runs = []
        progress.update(task, description=f"{dtype}, concurrency {concurrency}, {text}")
        modes = modes_of(text, concurrency, engine)
        num = WAVES * concurrency
        for turn in range(-1, turns * (SINGLE_REQUEST_TURNS if concurrency == 1 else 1)):
            modes = modes[1:] + modes[:1]
            selected = list(islice(cycle(prompts), (turn + 1) * num, (turn + 2) * num))
            if turn < 0:
                engine.run(FORERUN, selected, params, concurrency)  # the other modes learn nothing
                continue
            steps = {mode: engine.run(mode, selected, params, concurrency) for mode in modes}
            if all(steps.values()):  # outputs can end at once
                cell = (family(dtype, text), cell_name(dtype, text, concurrency))
                runs += [LoadRun.from_steps((*cell, mode, turn), some) for mode, some in steps.items()]
        yield runs
        progress.advance(task)


def summary_line(line: dict[str, Any]) -> str:
    """Summary line of a finished cell."""
    speedup = line["speedup"]
    text = (
        f"{line['dtype']}, concurrency {line['concurrency']}, {line['text']}: {speedup['median']:.2f}"
        f" [{speedup['low']:.2f}, {speedup['high']:.2f}], noise-free {speedup['without_noise']:.3f},"
        f" {line['tokens_per_step']:.2f} tokens per step, {line['steps'][FORERUN]} steps"
    )
    if "best" in line:
        over = line["over_best"]
        text += f"; relative to {line['best']} {over['median']:.2f}, noise-free {over['without_noise']:.3f}"
    return text


def show(lines: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(title="throughput relative to non-speculative decoding and to the best fixed length")
    titles = (
        "",
        "text",
        "concurrency",
        "measured",
        "noise-free",
        "p below",
        "best",
        "measured",
        "noise-free",
    )
    for title in titles:
        table.add_column(title, justify="left" if title in {"", "text"} else "right")
    for line in lines:
        speedup, over = line["speedup"], line.get("over_best")
        table.add_row(
            line["dtype"],
            line["text"],
            str(line["concurrency"]),
            f"{speedup['median']:.2f} [{speedup['low']:.2f}, {speedup['high']:.2f}]",
            f"{speedup['without_noise']:.3f}",
            f"{speedup['p_below']:.2f}",
            *((line["best"], f"{over['median']:.2f}", f"{over['without_noise']:.3f}") if over else [""] * 3),
        )
    Console().print(table)


def main(  # noqa: PLR0913, PLR0917  (one parameter per option)
    model: Annotated[Path, typer.Option(help="Model directory.")],
    questions: Annotated[
        Path, typer.Option(help="Spec-Bench's question file; its MT-bench category is the chat text.")
    ],
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    concurrency: Annotated[str, typer.Option(help="Concurrent requests, comma-separated.")] = "1,4,16",
    only: Annotated[str, typer.Option(help="Only cells whose text begins with this.")] = "",
    turns: int = 6,
    fixed: Annotated[
        str, typer.Option(help="Fixed draft lengths to compare with; long ones can take very long.")
    ] = FIXED,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only cells that are not in the record.")
    ] = False,
    record: Record = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw a heat map of the whole record to this file.")
    ] = None,
) -> None:
    """Measure on an otherwise idle machine, about an hour per dtype. The record is written after every cell
    and keeps its other cells.
    """
    concurrencies = [int(each) for each in concurrency.split(",")]
    if max(concurrencies) > MAX_CONCURRENCY or turns < 2:
        raise typer.BadParameter(
            f"--concurrency may be at most {MAX_CONCURRENCY} and --turns must be at least 2"
        )
    time_stock_scheduler()
    engine = LoadEngine(model, dtype, [int(each) for each in fixed.split(",")])
    every = texts(engine, questions)
    arguments = f"--questions {questions.name} --dtype {dtype} --concurrency {concurrency} --turns {turns}"
    arguments += f" --only '{only}'" if only else ""
    arguments += f" --fixed {fixed}" if fixed != FIXED else ""
    provenance_now = provenance(
        f'make bench-load ARGS="{arguments}"', ("torch", "vllm-cpu", "numba"), torch.get_num_threads()
    )
    facts: dict[str, Any] = {}
    runs: list[LoadRun] = []
    if record is not None and record.exists():
        before = json.loads(record.read_text(encoding="utf-8"))
        runs, facts = from_rows(before["runs"]), before["facts"]
    cells = {
        (dtype, text, each): cell
        for each in concurrencies
        for text, cell in every.items()
        if text.startswith(only) and not (missing and cell_name(dtype, text, each) in facts)
    }
    with Progress(console=Console(stderr=True)) as progress:
        warm_up(engine, every, progress)
        for some in measure(engine, cells, turns, progress):
            facts[some[0].cell] = provenance_now
            runs = [run for run in runs if run.cell != some[0].cell] + some
            lines = lines_of(runs)
            progress.console.print(summary_line(lines[-1]))
            if record is not None:
                contents = {"facts": facts, "lines": lines, "runs": to_rows(runs)}
                record.write_text(json.dumps(contents) + "\n", encoding="utf-8")
    lines = lines_of(runs)
    show(lines)
    if figure is not None:
        write_figure(partial(draw_load, lines), figure)


if __name__ == "__main__":
    typer.run(main)
