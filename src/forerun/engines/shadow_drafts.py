"""Shadow drafts: the scheduler's copies of the drafts that the worker looks up, and their outcomes.

The output of a request shows how many tokens of a shadow draft were right, whether or not rows were planned
for them: the target emits the same tokens with and without drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.control.candidates import drafter_survival
from forerun.control.row_forecast import RowForecast
from forerun.engines.guarded_drafter import EMPTY_DRAFT
from forerun.engines.speculative_step import SpeculativeStep
from forerun.engines.speculator import Speculator
from forerun.types import Draft, Tokens


@dataclass(frozen=True, slots=True)
class ShadowDraft:
    """The draft found from the first `num_tokens` tokens of a request; `num_rows` rows were planned for it.

    A draft that does not continue the shadow draft before has a `clue`: the stated survival of that draft's
    first token.
    """

    num_tokens: int
    draft: Draft
    num_rows: int
    clue: float | None


class ShadowOutcomes:
    """The outcomes of the shadow drafts of a step's requests."""

    def __init__(self, num_requests: int) -> None:
        self._clues, self._found_clues = np.zeros((2, num_requests))
        counts = np.zeros((4, num_requests), dtype=np.int64)
        self._num_accepted, self._num_tokens, self._num_found, self._max_found = counts
        self._unplanned = [EMPTY_DRAFT] * num_requests
        self._unplanned_accepted = np.zeros(num_requests, dtype=bool)

    def add(self, index: int, shadow: ShadowDraft, emitted: Tokens) -> float | None:
        """Add the tokens emitted after a request's shadow draft was looked up.

        Returns the clue of the next shadow draft, None if it continues this one.
        """
        num_right = num_matching(shadow.draft, emitted)
        if shadow.clue is not None:
            self._clues[index] = shadow.clue
            self._num_accepted[index], self._num_tokens[index] = num_right, len(emitted)
        if not shadow.num_rows:
            self._unplanned[index] = shadow.draft.truncate(1)
            self._unplanned_accepted[index] = num_right > 0
        return first_survival(shadow.draft) if num_right < len(emitted) else None

    def add_found(self, index: int, clue: float, length: int, max_length: int) -> None:
        """Add the length of a draft found after a rejection."""
        self._found_clues[index] = clue
        self._num_found[index], self._max_found[index] = length, max_length

    def record(self, step: SpeculativeStep, forecast: RowForecast, speculator: Speculator) -> None:
        """Record all outcomes; those of planned rows are recorded with their step."""
        forecast.record_accepted(step.control, self._clues, self._num_accepted, self._num_tokens)
        forecast.record_found(step.control, self._found_clues, self._num_found, self._max_found)
        candidates = speculator.merger.candidates(step, self._unplanned)
        if len(candidates):
            accepted = self._unplanned_accepted[candidates.owners]
            speculator.controller.calibrate(step.control, candidates, accepted)


def first_survival(draft: Draft) -> float:
    """The stated survival of a draft's first token, 0 for an empty draft."""
    return float(drafter_survival(draft)[0]) if len(draft) else 0.0


def num_matching(draft: Draft, tokens: Tokens) -> int:
    """The number of leading draft tokens that equal these tokens."""
    num, max_num = 0, min(len(draft), len(tokens))
    drafted = draft.tokens.tolist()
    while num < max_num and drafted[num] == tokens[num]:
        num += 1
    return num
