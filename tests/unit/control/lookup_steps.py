"""Steps of requests whose draft tokens come from a lookup, for tests of the controller."""

from __future__ import annotations

from functools import partial

import numpy as np

from forerun.control.candidates import Candidates
from forerun.control.controller import Controller
from forerun.control.step import Step
from forerun.types import Draft


def lookup_draft(*survival: float) -> Draft:
    return Draft.chain([1] * len(survival), source="suffix", survival=np.array(survival, dtype=np.float32))


def begin_step_with(controller: Controller, drafts: list[Draft]) -> tuple[Step, Candidates]:
    """A step of new requests, one per draft."""
    names = [str(number) for number in range(len(drafts))]
    for name in names:
        controller.admit(name, greedy=True)
    step = controller.begin_step(names, len(drafts))
    return step, Candidates.from_drafts(drafts, partial(controller.kind, step))


def run_steps(
    controller: Controller, truth: float, num_steps: int, *, row_cost: float, length: int = 4
) -> float:
    """Run steps of the request "a", whose draft tokens are accepted with probability `truth`.

    Returns tokens per second; non-speculative decoding has 1.
    """
    rng = np.random.default_rng(3)
    tokens = seconds = 0.0
    for _ in range(num_steps):
        step = controller.begin_step(["a"], 1)
        candidates = Candidates.from_drafts(
            [lookup_draft(*(0.7**depth for depth in range(1, length + 1)))], partial(controller.kind, step)
        )
        num = int(controller.choose(step, candidates).sum())
        accepted = np.cumprod(rng.random(num) < truth).astype(bool)
        took = 1.0 + row_cost * num
        controller.record_step(step, accepted, took)
        tokens += 1 + int(accepted.sum())
        seconds += took
    return tokens / seconds
