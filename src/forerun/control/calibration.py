"""Online logistic regression that calibrates the acceptance probabilities stated by drafters.

It has one set of coefficients per kind of draft token (drafter; greedy or sampled request). Each request
adds two biases: one for all its tokens, and one for tokens beyond the first. Copied code goes on for long,
while in a chat the first token may be right and the second is hardly ever.

    logit(p) = a + b * logit(stated p) + c * log(depth) + bias [+ continuation bias]

One Newton step per decoding step fits coefficients and biases online, with exponential forgetting: slow for
the coefficients, within about twenty steps for the biases.
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
