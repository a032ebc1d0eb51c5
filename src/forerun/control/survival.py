"""Calibrated acceptance probabilities of draft tokens, learnt online.

Drafters rank their tokens well, but the probabilities that they state are poorly calibrated, most of all for
sampled output: a lookup knows which token followed, not how confident the target was. A logistic regression
maps the stated probability to an acceptance probability. It has one set of coefficients per kind of draft
token (drafter; greedy or sampled request). Each request adds two biases: one for all its tokens, and one for
tokens beyond the first. Copied code goes on for long, while in a chat the first token may be right and the
second is hardly ever.

    logit(p) = a + b * logit(stated p) + c * log(depth) + bias [+ continuation bias]

One Newton step per decoding step fits coefficients and biases online, with exponential forgetting: slow for
the coefficients, within about twenty steps for the biases. New requests start from the biases at which
earlier requests ended. A draft token survives if it and all its ancestors are accepted.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from forerun.core.jit import compiled
from forerun.types import BoolArray, FloatArray, IntArray

PRIOR_COEFFICIENTS: Final = (0.5, 1.0, 0.0)
"""Prior of (a, b, c): draft tokens are accepted somewhat more often than lookups state."""

PRIOR_PRECISION: Final = 4.0
COEFFICIENT_DECAY: Final = 0.005
"""Precision of the coefficients' prior, and the share of the learnt precision forgotten per step."""

BIAS_PRIOR_PRECISION: Final = (1.0, 4.0)
BIAS_DECAY: Final = 0.05
"""The same for a request's two biases."""

BIAS_CARRY_OVER: Final = 0.3
"""Weight of a finished request in the initial biases of later ones."""

MAX_BIAS_STEP: Final = 1.5
MAX_COEFFICIENT_STEP: Final = 0.5
"""Bounds of a Newton step. The tokens of one chain are strongly correlated, so a full step would overshoot.
"""

MIN_SLOPE: Final = 0.1
MAX_SLOPE: Final = 3.0
"""Bounds of b: a higher stated probability always means a higher estimate."""

MIN_PROBABILITY: Final = 1e-3
"""Probabilities are clipped to [MIN_PROBABILITY, 1 - MIN_PROBABILITY]."""

LOG_DEPTH: Final = np.log(np.maximum(np.arange(1025), 1))
"""Logarithms of depths, up to the maximum depth of a draft."""


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

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

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


@compiled
def _drafter_logit(drafter_survival: FloatArray, parents: IntArray, node: int) -> float:
    """Logit of the acceptance probability that the drafter states, given its ancestors."""
    parent_survival = 1.0 if parents[node] < 0 else drafter_survival[parents[node]]
    probability = drafter_survival[node] / parent_survival if parent_survival > 0.0 else 0.0
    probability = min(max(probability, MIN_PROBABILITY), 1.0 - MIN_PROBABILITY)
    return float(np.log(probability / (1.0 - probability)))


@compiled
def estimate_survivals(
    drafter_survival: FloatArray,
    parents: IntArray,
    kinds: IntArray,
    slots: IntArray,
    coefficients: FloatArray,
    bias: FloatArray,
) -> FloatArray:
    """Survival probabilities; parents come before their children."""
    out = np.empty(len(drafter_survival))
    depths = np.empty(len(drafter_survival), dtype=np.int64)
    for node in range(len(drafter_survival)):
        kind, parent = kinds[node], parents[node]
        depths[node] = 1 if parent < 0 else depths[parent] + 1
        if parent >= 0 and out[parent] < MIN_PROBABILITY:  # too unlikely for its subtree to matter
            out[node] = MIN_PROBABILITY * out[parent]
            continue
        z = _linear_predictor(
            coefficients[kind], _drafter_logit(drafter_survival, parents, node), depths[node]
        )
        z += _bias_at(bias[slots[node], kind], depths[node])
        probability = min(max(1.0 / (1.0 + np.exp(-z)), MIN_PROBABILITY), 1.0 - MIN_PROBABILITY)
        out[node] = probability if parent < 0 else probability * out[parent]
    return out


@compiled
def _linear_predictor(coefficients: FloatArray, x: float, depth: int) -> float:
    """Linear predictor at a stated logit and a depth."""
    return float(
        coefficients[0] + coefficients[1] * x + coefficients[2] * LOG_DEPTH[min(depth, len(LOG_DEPTH) - 1)]
    )


@compiled
def _bias_at(bias: FloatArray, depth: int) -> float:
    """Bias of a request at a depth."""
    return float(bias[0] if depth == 1 else bias[0] + bias[1])


@compiled
def newton_step(
    draft_tokens: tuple[FloatArray, IntArray, IntArray, IntArray],
    accepted: BoolArray,
    coefficients: FloatArray,
    precision: FloatArray,
    bias: FloatArray,
    bias_precision: FloatArray,
) -> None:
    """One Newton step for all coefficients and biases with draft tokens. Only tokens whose parent was
    accepted count.
    """
    drafter_survival, parents, kinds, slots = draft_tokens
    gradient = np.zeros((len(coefficients), 3))
    hessian = np.zeros((len(coefficients), 3, 3))
    bias_gradient, bias_hessian = np.zeros(bias.shape), np.zeros(bias.shape)
    depths, x = np.empty(len(drafter_survival), dtype=np.int64), np.ones(3)
    for node in range(len(drafter_survival)):
        kind, slot, parent = kinds[node], slots[node], parents[node]
        depths[node] = 1 if parent < 0 else depths[parent] + 1
        if parent >= 0 and not accepted[parent]:
            continue
        x[1], x[2] = (
            _drafter_logit(drafter_survival, parents, node),
            LOG_DEPTH[min(depths[node], len(LOG_DEPTH) - 1)],
        )
        z = _linear_predictor(coefficients[kind], x[1], depths[node]) + _bias_at(
            bias[slot, kind], depths[node]
        )
        p = 1.0 / (1.0 + np.exp(-z))
        error, weight = accepted[node] - p, p * (1.0 - p)
        for which in range(1 if depths[node] == 1 else 2):
            bias_gradient[slot, kind, which] += error
            bias_hessian[slot, kind, which] += weight
        for i in range(3):
            gradient[kind, i] += error * x[i]
            for j in range(3):
                hessian[kind, i, j] += weight * x[i] * x[j]
    for kind in range(len(coefficients)):
        if hessian[kind, 0, 0] > 0.0:
            _newton_step_coefficients(coefficients[kind], precision[kind], gradient[kind], hessian[kind])
    _newton_step_biases(bias, bias_precision, bias_gradient, bias_hessian)


@compiled
def _newton_step_biases(
    bias: FloatArray, bias_precision: FloatArray, bias_gradient: FloatArray, bias_hessian: FloatArray
) -> None:
    """Newton step of every bias with draft tokens, with a prior at 0."""
    for slot, kind, which in zip(*np.nonzero(bias_hessian)):  # noqa: B905 (compiled)
        index, prior = (slot, kind, which), BIAS_DECAY * BIAS_PRIOR_PRECISION[which]
        precision = (1 - BIAS_DECAY) * bias_precision[index] + prior + bias_hessian[index]
        delta = (bias_gradient[index] - prior * bias[index]) / precision
        bias[index] += min(max(delta, -MAX_BIAS_STEP), MAX_BIAS_STEP)
        bias_precision[index] = precision


@compiled
def _newton_step_coefficients(
    coefficients: FloatArray, precision: FloatArray, gradient: FloatArray, hessian: FloatArray
) -> None:
    """Newton step of one kind's coefficients, with a prior at `PRIOR_COEFFICIENTS`."""
    penalized = gradient.copy()
    for i in range(3):
        for j in range(3):
            precision[i, j] = (1 - COEFFICIENT_DECAY) * precision[i, j] + hessian[i, j]
        precision[i, i] += COEFFICIENT_DECAY * PRIOR_PRECISION
        penalized[i] -= COEFFICIENT_DECAY * PRIOR_PRECISION * (coefficients[i] - PRIOR_COEFFICIENTS[i])
    delta = np.linalg.solve(precision, penalized)
    for i in range(3):
        coefficients[i] += min(max(delta[i], -MAX_COEFFICIENT_STEP), MAX_COEFFICIENT_STEP)
    coefficients[1] = min(max(coefficients[1], MIN_SLOPE), MAX_SLOPE)
