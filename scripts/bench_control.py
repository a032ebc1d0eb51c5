"""Measures the time of one controller decision relative to the step it is made for.

make bench-control
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console

from forerun.bench.provenance import provenance
from forerun.control.candidates import Candidates, select_drafts
from forerun.control.controller import Controller
from forerun.control.step_cost import StepCost
from forerun.models.loading import load_model
from forerun.models.runner import Runner
from forerun.types import Draft
from records import AsJson, Record, finish, quartiles

REQUESTS, NODES = 256, 64
STEPS = 200


def drafts(random: np.random.Generator) -> list[Draft]:
    """One chain per request, with survival estimates that decrease with depth."""
    proposed = []
    for _ in range(REQUESTS):
        survivals = np.cumprod(random.uniform(0.5, 1.0, NODES)).astype(np.float32)
        tokens = random.integers(0, 49152, NODES)
        proposed.append(Draft.chain(tokens, source="suffix", survival=survivals))
    return proposed


def decide(controller: Controller, names: list[str], proposed: list[Draft]) -> tuple[float, int]:
    """Seconds of controller time in one step, from `begin_step` to `record_step`, and the draft length."""
    start = time.perf_counter()
    step = controller.begin_step(names, len(names))
    candidates = Candidates.from_drafts(proposed, partial(controller.kind, step))
    chosen = controller.choose(step, candidates)
    selected = select_drafts(proposed, chosen)
    spent = time.perf_counter() - start
    num = sum(map(len, selected))
    accepted = np.concatenate([np.arange(len(draft)) < 2 for draft in selected])
    seconds = controller.cost.at(len(names) + num)
    start = time.perf_counter()
    controller.record_step(step, accepted, seconds)
    return spent + time.perf_counter() - start, num


def main(
    model: Annotated[Path, typer.Option(help="Model directory.")],
    dtype: str = "bfloat16",
    threads: int = 2,
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Profile forward passes of the model, then time decisions for 256 requests."""
    torch.set_num_threads(threads)
    target = Runner(load_model(model, getattr(torch, dtype)), num_slots=4, max_length=1024)
    controller = Controller(StepCost.profile(target.time_forward, 1024))
    names = [str(number) for number in range(REQUESTS)]
    for name in names:
        controller.admit(name, greedy=True)
    proposed = drafts(np.random.default_rng(0))
    timings = [decide(controller, names, proposed) for _ in range(STEPS)][STEPS // 4 :]
    middle, low, high = quartiles([spent for spent, _ in timings])
    num = int(np.median([num for _, num in timings]))
    line: dict[str, Any] = {
        "name": f"decision for {REQUESTS} requests with {NODES} candidates each",
        "seconds": [middle, low, high],
        "num_draft_tokens": num,
        "baseline_step": controller.cost.at(REQUESTS),
        "step": controller.cost.at(REQUESTS + num),
    }
    line |= {
        key: middle / line[of] for key, of in (("share_of_baseline", "baseline_step"), ("share", "step"))
    }
    facts = provenance("make bench-control", ["torch", "transformers", "numba"], threads)
    finish([line], facts, show, record, as_json)


def show(lines: list[dict[str, Any]]) -> None:
    """Print one sentence per line of the record."""
    for line in lines:
        middle, low, high = (1e3 * each for each in line["seconds"])
        Console().print(
            f"{line['name']}: {middle:.2f} ms [{low:.2f}, {high:.2f}];"
            f" {line['num_draft_tokens']} draft tokens chosen."
            f" A non-speculative step takes {1e3 * line['baseline_step']:.0f} ms"
            f" ({line['share_of_baseline']:.2%}), this one {1e3 * line['step']:.0f} ms ({line['share']:.2%})."
        )


if __name__ == "__main__":
    typer.run(main)
