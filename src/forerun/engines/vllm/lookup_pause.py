"""Consecutive steps in which nothing is looked up: scheduled as stock vLLM does, and recorded together."""

from __future__ import annotations

from typing import Any

from forerun.engines.speculative_step import SpeculativeStep
from forerun.engines.speculator import Speculator


class LookupPause:
    """The steps until the next lookup, as long as the same requests decode.

    Where lookups do not pay, the controller leaves most steps without drafts. It knows beforehand how many,
    so such a step needs no `SpeculativeStep`: forerun adds little more to it than a comparison.
    """

    def __init__(self, speculator: Speculator) -> None:
        self.speculator = speculator
        self._step: SpeculativeStep | None = None
        self._requests: list[Any] = []
        self._num_left = self._num_skipped = 0
        self._began_at = 0.0

    def begin(self, step: SpeculativeStep, requests: list[Any], now: float) -> None:
        """Begin after a step of these requests, which was closed at `now`."""
        self._step, self._requests, self._began_at = step, requests, now
        self._num_left, self._num_skipped = self.speculator.num_steps_without_lookup(step), 0

    def skip(self, requests: list[Any]) -> bool:
        """Whether the next step, which decodes these requests, belongs to the pause."""
        if not self._num_left or requests != self._requests:
            return False
        self._num_left -= 1
        self._num_skipped += 1
        return True

    def end(self, now: float) -> None:
        """Record the steps of the pause, which ended at `now`."""
        if self._step is not None and self._num_skipped:
            self.speculator.record_skipped(self._step, self._num_skipped, now - self._began_at)
        self._step, self._requests, self._num_left, self._num_skipped = None, [], 0, 0
