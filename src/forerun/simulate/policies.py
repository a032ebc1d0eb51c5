"""Who decides how far to guess in a simulated engine: nobody, a fixed length, or the controller itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from forerun.control.candidates import ASSUMED, Candidates, leading_mask
from forerun.control.controller import Controller
from forerun.control.step_cost import StepCost
from forerun.simulate.hardware import Roofline
from forerun.types import IntArray

WIDEST: Final = 16384
"""Rows up to which a simulated engine measures its steps before it starts."""


class Policy(Protocol):
    """Decides for one engine, step by step."""

    def admit(self, name: str) -> None:
        """A new request."""

    def forget(self, name: str) -> None:
        """It is over."""

    def lengths(self, names: Sequence[str], rows: int, context: int) -> IntArray:
        """How many guesses each request gets, in a pass of so many rows and tokens of context without any."""

    def observe(self, stood: IntArray, seconds: float) -> None:
        """So many of them stood, and the pass took so long."""


class FixedLengthPolicy:
    """Always as many guesses; 0 is plain decoding."""

    def __init__(self, length: int) -> None:
        self.length = length

    def admit(self, name: str) -> None:
        """Nothing to remember."""

    def forget(self, name: str) -> None:
        """Nothing to forget."""

    def lengths(self, names: Sequence[str], rows: int, context: int) -> IntArray:
        """The same for everybody, whatever it costs."""
        del rows, context
        return np.full(len(names), self.length)

    def observe(self, stood: IntArray, seconds: float) -> None:
        """Nothing to learn."""


class ControllerPolicy:
    """What the engines do. A drafter offers everybody a chain and says nothing about how likely it is."""

    def __init__(self, cost: StepCost, longest: int) -> None:
        self.controller = Controller(cost)
        self.longest = longest
        self._kind = self.controller.survival.kind("simulated", greedy=True)
        self._offers: dict[int, Candidates] = {}
        self._step = self.controller.begin_step([], 0)
        self._kept: IntArray = np.zeros(0, dtype=np.int64)

    def admit(self, name: str) -> None:
        """A new request."""
        self.controller.admit(name, greedy=True)

    def forget(self, name: str) -> None:
        """It is over."""
        self.controller.forget(name)

    def lengths(self, names: Sequence[str], rows: int, context: int) -> IntArray:
        """As many as pay."""
        self._step = self.controller.begin_step(names, rows, context)
        offer = self._offer(len(names))
        kept = self.controller.choose(self._step, offer)
        self._kept = np.bincount(offer.owners[kept], minlength=len(names))
        return self._kept

    def observe(self, stood: IntArray, seconds: float) -> None:
        """Let the controller learn."""
        self.controller.record_step(self._step, leading_mask(self._kept, stood), seconds)

    def _offer(self, num: int) -> Candidates:
        """A chain for each of so many requests."""
        if num not in self._offers:
            depth = np.tile(np.arange(self.longest), num)
            self._offers[num] = Candidates(
                ASSUMED ** (depth + 1.0),
                np.where(depth == 0, -1, np.arange(len(depth)) - 1),
                np.full(len(depth), self._kind),
                np.repeat(np.arange(num), self.longest),
                np.zeros(len(depth), dtype=bool),
            )
        return self._offers[num]


def profiled(roofline: Roofline) -> StepCost:
    """The curve that an engine would measure before it starts, with nothing in its context."""
    rows = 2 ** np.arange(int(np.log2(WIDEST)) + 1)
    return StepCost(rows.tolist(), roofline(rows.astype(np.float64), 0.0).tolist())
