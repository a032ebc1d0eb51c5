"""How long the controller takes to decide, beside the step that it decides about.

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
TURNS = 200


def drafts(random: np.random.Generator) -> list[Draft]:
    """A chain for every request; what is stated of its guesses falls with depth."""
    found = []
    for _ in range(REQUESTS):
        survivals = np.cumprod(random.uniform(0.5, 1.0, NODES)).astype(np.float32)
        tokens = random.integers(0, 49152, NODES)
        found.append(Draft.chain(tokens, source="suffix", evidence=survivals[:, None]))
    return found


def decide(controller: Controller, names: list[str], found: list[Draft]) -> tuple[float, int]:
    """Seconds of all that is decided in one step, from opening it to closing it, and the guesses made."""
    began = time.perf_counter()
    step = controller.begin_step(names, len(names))
    guesses = Candidates.of(found, partial(controller.kind, step))
    kept = controller.choose(step, guesses)
    left = select_drafts(found, kept)
    spent = time.perf_counter() - began
    num = sum(map(len, left))
    stood = np.concatenate([np.arange(len(draft)) < 2 for draft in left])
    seconds = controller.cost.at(len(names) + num)
    began = time.perf_counter()
    controller.record_step(step, stood, seconds)
    return spent + time.perf_counter() - began, num


def main(
    model: Annotated[Path, typer.Option(help="The directory of the model.")],
    dtype: str = "bfloat16",
    threads: int = 2,
    record: Record = None,
    as_json: AsJson = False,
) -> None:
    """Measure passes of the model with up to a few hundred rows, then decide for 256 requests."""
    torch.set_num_threads(threads)
    target = Runner(load_model(model, getattr(torch, dtype)), num_slots=4, max_length=1024)
    controller = Controller(StepCost.profile(target.time_forward, 1024))
    names = [str(number) for number in range(REQUESTS)]
    for name in names:
        controller.admit(name, greedy=True)
    found = drafts(np.random.default_rng(0))
    turns = [decide(controller, names, found) for _ in range(TURNS)][TURNS // 4 :]
    middle, low, high = quartiles([spent for spent, _ in turns])
    num = int(np.median([num for _, num in turns]))
    line: dict[str, Any] = {
        "name": f"deciding for {REQUESTS} requests with {NODES} guesses each",
        "seconds": [middle, low, high],
        "guesses_made": num,
        "plain_step": controller.cost.at(REQUESTS),
        "step": controller.cost.at(REQUESTS + num),
    }
    line |= {key: middle / line[of] for key, of in (("share_of_plain", "plain_step"), ("share", "step"))}
    facts = provenance("make bench-control", ["torch", "transformers", "numba"], threads)
    finish([line], facts, show, record, as_json)


def show(lines: list[dict[str, Any]]) -> None:
    """A sentence for people."""
    for line in lines:
        middle, low, high = (1e3 * each for each in line["seconds"])
        Console().print(
            f"{line['name']}: {middle:.2f} ms [{low:.2f}, {high:.2f}]; {line['guesses_made']} guesses made."
            f" A plain step takes {1e3 * line['plain_step']:.0f} ms ({line['share_of_plain']:.2%}),"
            f" this one {1e3 * line['step']:.0f} ms ({line['share']:.2%})."
        )


if __name__ == "__main__":
    typer.run(main)
