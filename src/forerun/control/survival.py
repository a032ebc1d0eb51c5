"""Survival probabilities of draft tokens, learnt online.

Drafters rank their tokens well, but the probabilities that they state are poorly calibrated, most of all for
sampled output: a lookup knows which token followed, not how confident the target was. `calibration` maps the
stated probability to an acceptance probability, for each kind of draft token and each request. New requests
start from the biases at which earlier requests ended. A draft token survives if it and all its ancestors are
accepted.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from forerun.control.calibration import (
    BIAS_PRIOR_PRECISION,
    PRIOR_COEFFICIENTS,
    PRIOR_PRECISION,
    estimate_survivals,
    newton_step,
)
from forerun.types import BoolArray, FloatArray, IntArray

BIAS_CARRY_OVER: Final = 0.3
"""Weight of a finished request in the initial biases of later ones."""


class SurvivalEstimator:
    """Estimates by request slot and by kind of draft token."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, bool], int] = {}
        self._slots: dict[str, int] = {}
        self._free_slots: list[int] = []
        self.coefficients: FloatArray = np.empty((0, 3))
        self.precision: FloatArray = np.empty((0, 3, 3))
        self.bias: FloatArray = np.zeros((0, 0, 2))
        self.bias_precision: FloatArray = np.zeros((0, 0, 2))
        self._initial_bias: FloatArray = np.zeros((0, 2))

    def kind(self, source: str, *, greedy: bool) -> int:
        """Index of the kind for this drafter and request class, added on first use."""
        number = self._kinds.setdefault((source, greedy), len(self._kinds))
        if number == len(self.coefficients):
            self.coefficients = np.vstack([self.coefficients, [PRIOR_COEFFICIENTS]])
            self.precision = np.concatenate([self.precision, PRIOR_PRECISION * np.eye(3)[None]])
            self._resize()
        return number

    def admit(self, name: str) -> int:
        """Allocate a slot for a new request."""
        if not self._free_slots:
            num_slots = len(self.bias)
            self._free_slots = list(range(max(2 * num_slots, 8) - 1, num_slots - 1, -1))
            self._resize(max(2 * num_slots, 8))
        slot = self._slots[name] = self._free_slots.pop()
        self.bias[slot], self.bias_precision[slot] = self._initial_bias, BIAS_PRIOR_PRECISION
        return slot

    def slot(self, name: str) -> int:
        """Slot of a request."""
        return self._slots[name]

    def forget(self, name: str) -> None:
        """Free the slot of a finished request and carry its biases over."""
        slot = self._slots.pop(name, None)
        if slot is not None:
            self._free_slots.append(slot)
            # The weight is 0 if the request had no draft tokens.
            weight = np.minimum(self.bias_precision[slot] - BIAS_PRIOR_PRECISION, 1.0)
            self._initial_bias += BIAS_CARRY_OVER * weight * (self.bias[slot] - self._initial_bias)

    def _resize(self, num_slots: int | None = None) -> None:
        """Extend the arrays to more slots or kinds, keeping their contents."""
        slots, kinds, _ = self.bias.shape
        shape = (num_slots or slots, len(self.coefficients), 2)
        bias, precision, initial = np.zeros(shape), np.full(shape, BIAS_PRIOR_PRECISION), np.zeros(shape[1:])
        bias[:slots, :kinds], precision[:slots, :kinds] = self.bias, self.bias_precision
        initial[:kinds] = self._initial_bias
        self.bias, self.bias_precision, self._initial_bias = bias, precision, initial

    def estimate(
        self, drafter_survival: FloatArray, parents: IntArray, kinds: IntArray, slots: IntArray
    ) -> FloatArray:
        """Survival probability of each draft token. `drafter_survival` is stated by the drafter; `parents`
        index the same arrays, or are negative at the root.
        """
        return estimate_survivals(drafter_survival, parents, kinds, slots, self.coefficients, self.bias)

    def learn(
        self,
        drafter_survival: FloatArray,
        parents: IntArray,
        kinds: IntArray,
        slots: IntArray,
        accepted: BoolArray,
    ) -> None:
        """Update by the outcomes of a step."""
        newton_step(
            (drafter_survival, parents, kinds, slots),
            accepted,
            self.coefficients,
            self.precision,
            self.bias,
            self.bias_precision,
        )
