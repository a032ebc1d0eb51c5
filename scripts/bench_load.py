"""vLLM with guesses beside vLLM without, in one engine, under load: who says more tokens a second?

    make bench-load ARGS="--dtype bfloat16 --concurrency 1,16"

So many requests are kept going, a new one for each that ends, until all that count were answered; others
keep the load up behind them. Steps are taken in which all decode and nobody reads a prompt. Ways to decode
take turns within a cell; each has a controller of its own, so that none learns from what others were asked to
do.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import wraps
from itertools import chain, count, cycle, islice
from pathlib import Path
from typing import Annotated, Any, Final

from forerun.engines.vllm.launch import engine_arguments, preloaded

if (preload := preloaded()) and "LD_PRELOAD" not in os.environ:  # as servers of ours have it
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **preload})  # noqa: S606

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler has to be within reach
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # curves that are learnt here are nobody else's
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from vllm import LLM, SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler as StockScheduler

from forerun.bench.figures.load import draw_load
from forerun.bench.load import OURS, PLAIN, LoadRun, Timed, lines_of, runs_of, values
from forerun.bench.provenance import provenance
from forerun.bench.suites import CODE_EDITING, read_suite
from forerun.config import SpeculationConfig
from forerun.engines.vllm.scheduler import Scheduler
from forerun.models.loading import load_tokenizer
from records import Record

ROOT = Path(__file__).parents[1]
FIXED: Final = "2,4,8,16"
MOST: Final = 16
"""Requests at a time, at most."""

WAVES: Final = 2
"""How many requests of a run count, for each that is under way at a time."""

COUNTED, FILLER = "counted", "filler"
"""How the names of requests begin."""

ALONE: Final = 3
"""One at a time, turns are short, and there are so many times as many: the machine is as fast for all ways of
a turn only if that is soon over, and what can be guessed is very different from text to text.
"""

LONGEST: Final = 900
"""Tokens of a prompt that is asked."""

WARM: Final = 16
"""How many requests of every text are asked before the first that counts."""

TOKENS: Final = 64
"""The most that a request says."""


class Recorded(Scheduler):
    """Our scheduler, with a note of every step: when it began, its rows, how many decoded, how many of them
    count, what these said, what was ours.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.notes: list[tuple[float, int, int, int, int, float]] = []
        self._began = self._ours = 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Note when a step begins."""
        self._began, vllms = time.perf_counter(), Stock.seconds
        output = super().schedule(*args, **kwargs)
        self._ours = time.perf_counter() - self._began - (Stock.seconds - vllms)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Note who decoded, with how many rows, and what was said."""
        began, vllms = time.perf_counter(), Stock.seconds
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._ours += time.perf_counter() - began - (Stock.seconds - vllms)
        rows = scheduler_output.total_num_scheduled_tokens
        checked = sum(map(len, scheduler_output.scheduled_spec_decode_tokens.values()))
        requests = list(scheduler_output.num_scheduled_tokens)
        counted = sum(name.startswith(COUNTED) for name in requests)
        said = sum(
            len(each.new_token_ids)
            for one in outputs.values()
            for each in one.outputs
            if each.request_id.startswith(COUNTED)
        )
        decoding = len(requests) if rows - checked == len(requests) else 0
        self.notes.append((self._began, rows, decoding, counted, said, self._ours))
        return outputs

    def full(self, concurrency: int) -> list[Timed]:
        """The steps in which so many requests decoded and nobody read, until the next began."""
        ends = [began for began, *_ in self.notes[1:]]
        return [
            (rows, counted / concurrency, said, end - began, ours)
            for (began, rows, decoding, counted, said, ours), end in zip(self.notes, ends, strict=False)
            if decoding == concurrency and counted
        ]


class Stock:
    """How long vLLM's own scheduler took, in all."""

    seconds = 0.0

    @classmethod
    def timed(cls, method: Any) -> Any:
        """A method of it, with its time taken."""

        @wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                cls.seconds += time.perf_counter() - began

        return run


class Bench:
    """An engine of ours, and ways to decode with it."""

    def __init__(self, model: Path, dtype: str, fixed: list[int]) -> None:
        self.tokenizer = load_tokenizer(str(model))
        arguments = engine_arguments(SpeculationConfig()) | {"scheduler_cls": Recorded}
        self.llm = LLM(
            model=str(model),
            dtype=dtype,
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=MOST,
            enable_prefix_caching=True,  # ways ask for the same: prompts are read once
            block_size=32,
            **arguments,
        )
        self.scheduler: Recorded = self.llm.llm_engine.engine_core.engine_core.scheduler
        self.ways: dict[str, dict[str, int]] = {
            OURS: {},
            PLAIN: {"forerun_max_draft": 0},
            **{f"fixed {most}": {"forerun_adaptive": 0, "forerun_max_draft": most} for most in fixed},
        }
        controller = self.scheduler.guesser.controller
        self.controllers = {way: copy.deepcopy(controller) for way in self.ways}

    def run(self, way: str, asked: list[list[int]], params: SamplingParams, concurrency: int) -> list[Timed]:
        """Ask for all of these, so many at a time, one way to decode; for some again as long as they take."""
        self.scheduler.guesser.controller = self.controllers[way]
        engine, params = self.llm.llm_engine, params.clone()
        params.extra_args = self.ways[way]
        counted = [f"{COUNTED} {number}" for number in range(len(asked))]
        fillers = (f"{FILLER} {number}" for number in count())
        waiting, going = zip(chain(counted, fillers), cycle(asked), strict=False), set(counted)
        asked_for: list[str] = []
        while going:
            while engine.get_num_unfinished_requests() < concurrency:
                name, prompt = next(waiting)
                asked_for.append(name)
                engine.add_request(name, {"prompt_token_ids": prompt}, params)
            going -= {output.request_id for output in engine.step() if output.finished}
        engine.abort_request([name for name in asked_for if name.startswith(FILLER)])
        while engine.has_unfinished_requests():
            engine.step()
        steps = self.scheduler.full(concurrency)
        self.scheduler._close()  # while its controller is there
        self.scheduler.notes.clear()
        return steps

    def prompts(self, suite: str, category: str) -> list[list[int]]:
        """The questions of a suite as the model reads them, those that are not too long."""
        found = [
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": each.text}], add_generation_prompt=True, return_dict=False
            )
            for each in read_suite(suite)
            if each.category == category
        ]
        if not found:
            raise typer.BadParameter(f"{suite} has no questions of {category}")
        return [prompt for prompt in found if len(prompt) <= LONGEST]


def texts(bench: Bench, questions: Path) -> dict[str, tuple[list[list[int]], SamplingParams]]:
    """Prompts and settings by the name of the cell."""
    noise = np.random.default_rng(0).integers(100, 40000, (12, 256)).tolist()

    def settings(**given: Any) -> SamplingParams:
        return SamplingParams(max_tokens=TOKENS, detokenize=False, **given)

    found = {}
    for title, suite, category in (
        ("code editing", CODE_EDITING, CODE_EDITING),
        ("chat", str(questions), "mt-bench"),
    ):
        prompts = bench.prompts(suite, category)
        for temperature in (0, 1):
            found[f"{title}, temperature {temperature}"] = (prompts, settings(temperature=temperature))
    return found | {"random tokens": (noise, settings(temperature=2.0))}


def ways_of(text: str, concurrency: int, bench: Bench) -> list[str]:
    """Fixed lengths run where one would choose them: alone and at full load, greedy."""
    every = text.endswith("temperature 0") and concurrency in {1, 16}
    return list(bench.ways) if every else [OURS, PLAIN]


def family(dtype: str, text: str) -> str:
    """Whose steps cost the same for the same rows."""
    kind = "random" if text.startswith("random") else "greedy" if text.endswith("0") else "drawn"
    return f"{dtype}, {kind}"


def name_of(dtype: str, text: str, concurrency: int) -> str:
    """What a cell is called."""
    return f"{dtype} | {text} | {concurrency}"


def warm(bench: Bench, cells: dict[str, Any], progress: Progress) -> None:
    """Let the engine run for a while, as servers do; what it learns from everything stays."""
    task = progress.add_task("warming up", total=len(cells))
    for prompts, params in cells.values():
        bench.run(OURS, prompts[:WARM], params, 4)
        progress.advance(task)


def measure(
    bench: Bench, cells: dict[tuple[str, str, int], Any], turns: int, progress: Progress
) -> Iterator[list[LoadRun]]:
    """Every cell, turn by turn; ours has a turn before the first, which is not counted."""
    task = progress.add_task("", total=len(cells))
    for (dtype, text, concurrency), (prompts, params) in cells.items():
        runs = []
        progress.update(task, description=f"{dtype}, {concurrency} at a time, {text}")
        ways = ways_of(text, concurrency, bench)
        num = WAVES * concurrency
        for turn in range(-1, turns * (ALONE if concurrency == 1 else 1)):
            ways = ways[1:] + ways[:1]
            asked = list(islice(cycle(prompts), (turn + 1) * num, (turn + 2) * num))
            if turn < 0:
                bench.run(OURS, asked, params, concurrency)  # the others have nothing to learn
                continue
            steps = {way: bench.run(way, asked, params, concurrency) for way in ways}
            if all(steps.values()):  # answers can be over at once
                cell = (family(dtype, text), name_of(dtype, text, concurrency))
                runs += [LoadRun.of((*cell, way, turn), some) for way, some in steps.items()]
        yield runs
        progress.advance(task)


def said_of(line: dict[str, Any]) -> str:
    """A cell in a line, as it is done."""
    ours = line["over_plain"]
    text = (
        f"{line['dtype']}, {line['concurrency']} at a time, {line['text']}: {ours['median']:.2f}"
        f" [{ours['low']:.2f}, {ours['high']:.2f}], without noise {ours['without_noise']:.3f},"
        f" {line['tokens_per_step']:.2f} tokens a step, {line['steps'][OURS]} steps"
    )
    if "best" in line:
        over = line["over_best"]
        text += f"; over {line['best']} {over['median']:.2f}, without noise {over['without_noise']:.3f}"
    return text


def show(lines: list[dict[str, Any]]) -> None:
    """A table for people."""
    table = Table(title="tokens per second over plain decoding, and over the best fixed length")
    titles = ("", "text", "at a time", "clock", "without noise", "p below", "best", "clock", "without noise")
    for title in titles:
        table.add_column(title, justify="left" if title in {"", "text"} else "right")
    for line in lines:
        ours, over = line["over_plain"], line.get("over_best")
        table.add_row(
            line["dtype"],
            line["text"],
            str(line["concurrency"]),
            f"{ours['median']:.2f} [{ours['low']:.2f}, {ours['high']:.2f}]",
            f"{ours['without_noise']:.3f}",
            f"{ours['p_below']:.2f}",
            *((line["best"], f"{over['median']:.2f}", f"{over['without_noise']:.3f}") if over else [""] * 3),
        )
    Console().print(table)


def main(  # noqa: PLR0913, PLR0917  (options are many)
    model: Annotated[Path, typer.Option(help="The directory of the model.")],
    questions: Annotated[Path, typer.Option(help="Spec-Bench's questions; those of MT-bench are chat.")],
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    concurrency: Annotated[str, typer.Option(help="Requests at a time.")] = "1,4,16",
    only: Annotated[str, typer.Option(help="Cells whose names begin like this.")] = "",
    turns: int = 6,
    fixed: Annotated[
        str, typer.Option(help="Lengths to compare with; long ones can take very long.")
    ] = FIXED,
    missing: Annotated[bool, typer.Option("--missing", help="Only cells that the record lacks.")] = False,
    record: Record = None,
    figure: Annotated[Path | None, typer.Option(help="Draw a heat map of everything recorded.")] = None,
) -> None:
    """Measure, on a machine that does nothing else, an hour for each precision. The record is written after
    every cell, and keeps what it has of others.
    """
    widths = [int(each) for each in concurrency.split(",")]
    if max(widths) > MOST or turns < 2:
        raise typer.BadParameter(f"at most {MOST} at a time, and two turns or more")
    StockScheduler.schedule = Stock.timed(StockScheduler.schedule)
    StockScheduler.update_from_output = Stock.timed(StockScheduler.update_from_output)
    bench = Bench(model, dtype, [int(each) for each in fixed.split(",")])
    every = texts(bench, questions)
    asked = f"--questions {questions.name} --dtype {dtype} --concurrency {concurrency} --turns {turns}"
    asked += f" --only '{only}'" if only else ""
    asked += f" --fixed {fixed}" if fixed != FIXED else ""
    mine = provenance(
        f'make bench-load ARGS="{asked}"', ("torch", "vllm-cpu", "numba"), torch.get_num_threads()
    )
    facts: dict[str, Any] = {}
    runs: list[LoadRun] = []
    if record is not None and record.exists():
        before = json.loads(record.read_text(encoding="utf-8"))
        runs, facts = runs_of(before["runs"]), before["facts"]
    cells = {
        (dtype, text, width): cell
        for width in widths
        for text, cell in every.items()
        if text.startswith(only) and not (missing and name_of(dtype, text, width) in facts)
    }
    with Progress(console=Console(stderr=True)) as progress:
        warm(bench, every, progress)
        for some in measure(bench, cells, turns, progress):
            facts[some[0].cell] = mine
            runs = [run for run in runs if run.cell != some[0].cell] + some
            lines = lines_of(runs)
            progress.console.print(said_of(lines[-1]))
            if record is not None:
                kept = {"facts": facts, "lines": lines, "runs": values(runs)}
                record.write_text(json.dumps(kept) + "\n", encoding="utf-8")
    lines = lines_of(runs)
    show(lines)
    if figure is not None:
        draw_load(lines, figure)


if __name__ == "__main__":
    typer.run(main)
