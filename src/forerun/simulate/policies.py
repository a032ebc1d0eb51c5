"""Draft length policies of a simulated engine: fixed, or the controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from forerun.control.candidates import ASSUMED_ACCEPTANCE, Candidates, leading_mask
from forerun.control.controller import Controller
from forerun.control.step_cost import StepCost
from forerun.control.survival import SurvivalEstimator
from forerun.simulate.hardware import Roofline
from forerun.types import IntArray

PROFILED_ROWS: Final[IntArray] = 2 ** np.arange(15)
"""Row counts at which a simulated engine profiles its steps, up to 16,384."""


class Policy(Protocol):
    """Decides draft lengths for one engine, step by step."""

    def admit(self, name: str) -> None:
        """Add a request."""

    def forget(self, name: str) -> None:
        """Remove a finished request."""

    def lengths(self, names: Sequence[str], rows: int, context: int) -> IntArray:
        """Draft length of each request; `rows` and `context` describe the step without draft tokens."""

    def observe(self, num_accepted: IntArray, seconds: float) -> None:
        """Record the accepted draft tokens per request and the duration of the step."""


class FixedLengthPolicy:
    """Always the same draft length; 0 is non-speculative decoding."""

    def __init__(self, length: int) -> None:
        self.length = length

    def admit(self, name: str) -> None:
        """Does nothing."""

    def forget(self, name: str) -> None:
        """Does nothing."""

    def lengths(self, names: Sequence[str], rows: int, context: int) -> IntArray:
        """The fixed length for every request."""
        del rows, context
        return np.full(len(names), self.length)

    def observe(self, num_accepted: IntArray, seconds: float) -> None:
        """Does nothing."""


class ControllerPolicy:
    """The controller of the real engines. A drafter proposes a chain for every request and states no
    probabilities.
    """

    def __init__(self, cost: StepCost, max_length: int, survival: SurvivalEstimator | None = None) -> None:
        self.controller = Controller(cost, survival)
        self.max_length = max_length
        self._kind = self.controller.survival.kind("simulated", greedy=True)
        self._cache: dict[int, Candidates] = {}
        self._step = self.controller.begin_step([], 0)
        self._lengths: IntArray = np.zeros(0, dtype=np.int64)

    def admit(self, name: str) -> None:
        """Add a request."""
        self.controller.admit(name, greedy=True)

    def forget(self, name: str) -> None:
        """Remove a finished request."""
        self.controller.forget(name)

    def lengths(self, names: Sequence[str], rows: int, context: int) -> IntArray:
        """The lengths that the controller chooses."""
        self._step = self.controller.begin_step(names, rows, context)
        candidates = self._chains(len(names))
        keep = self.controller.choose(self._step, candidates)
        self._lengths = np.bincount(candidates.owners[keep], minlength=len(names))
        return self._lengths

    def observe(self, num_accepted: IntArray, seconds: float) -> None:
        """Report the outcome to the controller."""
        self.controller.record_step(self._step, leading_mask(self._lengths, num_accepted), seconds)

    def _chains(self, num_requests: int) -> Candidates:
        """Candidates with one chain per request."""
        if num_requests not in self._cache:
            depth = np.tile(np.arange(self.max_length), num_requests)
            self._cache[num_requests] = Candidates(
                ASSUMED_ACCEPTANCE ** (depth + 1.0),
                np.where(depth == 0, -1, np.arange(len(depth)) - 1),
                np.full(len(depth), self._kind),
                np.repeat(np.arange(num_requests), self.max_length),
                np.zeros(len(depth), dtype=bool),
            )
        return self._cache[num_requests]


def profile_roofline(roofline: Roofline) -> StepCost:
    """The curve that an engine would profile at startup, with an empty context."""
    return StepCost(PROFILED_ROWS.tolist(), roofline(PROFILED_ROWS.astype(np.float64), 0.0).tolist())
