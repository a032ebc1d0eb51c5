"""Time of a simulated draft model: sequential on the target's devices, or running ahead on its own.

Sequential drafting runs one forward pass per draft token, then the target verifies. With run-ahead drafting
the draft model prepares the next drafts, for several outcomes of each request, during the verification. A
request whose outcome was not prepared for needs a fresh draft, for which the batch waits.
"""

from __future__ import annotations

from typing import Annotated, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from forerun.simulate.hardware import Roofline
from forerun.types import IntArray


class DraftModelSetup(BaseModel):
    """A draft model with devices of its own, and how often the outcome of a step was prepared for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    devices: Annotated[int, Field(ge=1)] = 1
    hit_rate: Annotated[float, Field(ge=0, le=1)] = 0.9
    outcomes: Annotated[int, Field(ge=1)] = 8


class Drafting(Protocol):
    """The time that drafting adds to steps."""

    def seconds(self, lengths: IntArray, verify_seconds: float) -> float:
        """Seconds of a step beyond its verification, which takes `verify_seconds`."""


class SequentialDrafting:
    """A forward pass of the draft model for each draft token, before the verification."""

    def __init__(self, roofline: Roofline) -> None:
        self._roofline = roofline

    def seconds(self, lengths: IntArray, verify_seconds: float) -> float:
        """The forward passes of the longest draft, over a row of each request."""
        del verify_seconds
        return passes_seconds(self._roofline, int(lengths.max(initial=0)), len(lengths))


class RunAheadDrafting:
    """Drafts prepared during the verification; fresh ones where the outcome is another one."""

    def __init__(self, roofline: Roofline, setup: DraftModelSetup, random: np.random.Generator) -> None:
        self._roofline, self._setup, self._random = roofline, setup, random

    def seconds(self, lengths: IntArray, verify_seconds: float) -> float:
        """Fresh drafts of the requests that miss, and what of the preparation outlasts the verification.

        The preparation takes one forward pass more than a draft, which finds the outcomes after it.
        """
        num_drafting = int(np.count_nonzero(lengths))
        if not num_drafting:
            return 0.0
        length = int(lengths.max())
        num_misses = int(self._random.binomial(num_drafting, 1 - self._setup.hit_rate))
        fresh = passes_seconds(self._roofline, length, num_misses)
        prepared = passes_seconds(self._roofline, length + 1, num_drafting * self._setup.outcomes)
        return fresh + max(0.0, prepared - verify_seconds)


def passes_seconds(roofline: Roofline, num_passes: int, num_rows: int) -> float:
    """Seconds of forward passes with this many rows each."""
    return num_passes * float(roofline(np.array([float(num_rows)]), 0.0)[0]) if num_rows else 0.0
