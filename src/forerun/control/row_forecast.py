"""Forecast of draft rows one step ahead: will a row be filled, and will its draft token be accepted?

The draft that a step in flight verifies is known, and so is its continuation. If the step accepts the draft
and emits the next token of the continuation, the rest of it is the next draft. Otherwise the next draft
starts at a token that is unknown today. How long such drafts are, and how many of their tokens are accepted,
is learnt for each request and class of requests, like the acceptance of draft tokens.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from forerun.control.controller import Controller
from forerun.control.step import Step
from forerun.core.jit import compiled
from forerun.types import FloatArray, IntArray

ACCEPTED: Final = "accepted after rejection"
FOUND: Final = "found after rejection"
"""The sources under which the controller calibrates drafts after a rejection: acceptance and length."""

LATER_ACCEPTANCE: Final = 0.6
LATER_FOUND: Final = 0.95
"""Probabilities from which the calibration of the second and later tokens of such drafts starts."""

MIN_CLUE: Final = 0.01
"""Probability from which the calibration of the first token starts after an empty draft."""

MIN_FILL_PROBABILITY: Final = 0.7
"""Probability that a row is filled, below which it is not planned."""

NOT_IN_FLIGHT: Final = -1
"""Stands for the rows in flight of a request without a step in flight: its next draft is known."""


class RowForecast:
    """Forecasts the rows of a step while the step before is in flight.

    Arrays have one entry per request of the step. `clues` are the stated survivals of the first tokens of the
    drafts before, 0 for empty drafts: where one lookup finds a good draft, the next often does too.
    """

    def __init__(self, controller: Controller) -> None:
        self.controller = controller

    def record_found(self, step: Step, clues: FloatArray, lengths: IntArray, max_lengths: IntArray) -> None:
        """Record the lengths of drafts after a rejection; a maximum of 0 marks requests without one."""
        stated = found_by_depth(clues, int(max_lengths.max(initial=0)))
        self._record(step, FOUND, stated, np.minimum(lengths, max_lengths), max_lengths)

    def record_accepted(
        self, step: Step, clues: FloatArray, num_accepted: IntArray, num_tokens: IntArray
    ) -> None:
        """Record how many of the `num_tokens` tokens after a rejection such a draft had right, from its first
        token on; 0 tokens mark requests without one.
        """
        stated = accepted_by_depth(clues, int(num_tokens.max(initial=0)))
        self._record(step, ACCEPTED, stated, num_accepted, num_tokens)

    def _record(
        self, step: Step, source: str, stated: FloatArray, nums: IntArray, max_nums: IntArray
    ) -> None:
        """Record chains that end after `nums` tokens, or go on at `max_nums` tokens."""
        if max_nums.any():
            self.controller.record_accepted(step, source, np.minimum(nums + 1, max_nums), nums, stated)

    def acceptance(
        self,
        step: Step,
        survivals: FloatArray,
        drafts: tuple[IntArray, IntArray, FloatArray],
        max_rows: IntArray,
    ) -> tuple[FloatArray, IntArray]:
        """The probability of each row that it is filled and accepted, and the rows that are likely filled.

        `survivals` are those of the drafts known today, request after request. `drafts` are their sizes, the
        numbers of their leading tokens that the step in flight verifies, and their clues.
        """
        sizes, in_flight, clues = drafts
        depth = int(max_rows.max())
        found = self.controller.survival_by_depth(step, FOUND, found_by_depth(clues, depth))
        likely_rows = num_likely_filled(survivals, sizes, in_flight, found, max_rows)
        max_rows = np.where(step.adaptive, likely_rows, max_rows)
        accepted = self.controller.survival_by_depth(step, ACCEPTED, accepted_by_depth(clues, depth))
        return row_acceptance(survivals, sizes, in_flight, accepted, max_rows), max_rows


def accepted_by_depth(clues: FloatArray, depth: int) -> FloatArray:
    """Survival by depth from which the calibration starts."""
    stated: FloatArray = np.maximum(clues, MIN_CLUE)[:, None] * np.power(LATER_ACCEPTANCE, np.arange(depth))
    return stated


def found_by_depth(clues: FloatArray, depth: int) -> FloatArray:
    """Probability that a draft has at least this depth, from which the calibration starts."""
    stated: FloatArray = (0.5 + 0.5 * clues)[:, None] * np.power(LATER_FOUND, np.arange(depth))
    return stated


@compiled
def continuation_survival(survivals: FloatArray, start: int, size: int, in_flight: int) -> float:
    """Probability that the step in flight emits its draft and the next token of the draft's continuation."""
    if in_flight < 0:
        return 1.0
    return float(survivals[start + in_flight]) if in_flight < size else 0.0


@compiled
def num_likely_filled(
    survivals: FloatArray, sizes: IntArray, in_flight: IntArray, found: FloatArray, max_rows: IntArray
) -> IntArray:
    """Number of rows that are filled with at least `MIN_FILL_PROBABILITY`."""
    out = np.zeros(len(sizes), dtype=np.int64)
    start = 0
    for i in range(len(sizes)):
        survival = continuation_survival(survivals, start, sizes[i], in_flight[i])
        while out[i] < max_rows[i]:
            continues = in_flight[i] + 1 + out[i] < sizes[i]
            filled = (survival if continues else 0.0) + (1.0 - survival) * found[i, out[i]]
            if filled < MIN_FILL_PROBABILITY:
                break
            out[i] += 1
        start += sizes[i]
    return out


@compiled
def row_acceptance(
    survivals: FloatArray, sizes: IntArray, in_flight: IntArray, accepted: FloatArray, max_rows: IntArray
) -> FloatArray:
    """Probability of each row that it is filled and accepted, request after request; never rising."""
    out = np.empty(max_rows.sum())
    start, at = 0, 0
    for i in range(len(sizes)):
        survival = continuation_survival(survivals, start, sizes[i], in_flight[i])
        bound = 1.0
        for row in range(max_rows[i]):
            node = in_flight[i] + 1 + row
            continued = survivals[start + node] if node < sizes[i] else 0.0
            bound = min(bound, continued + (1.0 - survival) * accepted[i, row])
            out[at] = bound
            at += 1
        start += sizes[i]
    return out
