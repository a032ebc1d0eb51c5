"""Acceptance figures of scripts/measure_coupling.py: exact at a position, by draws, and of a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from coupling_table import METHODS
from forerun.core.acceptance import accepts
from forerun.core.exponential_race import exponential_race_rows
from forerun.core.theory import coupled_matches, expected_accepted_along
from forerun.types import FloatArray, IntArray

DRAFT_LENGTH: Final = 4
RESAMPLES: Final = 2000
INDEPENDENT: Final = 1 << 32
"""Added to the key of the target's noise, it gives the key of independent noise."""


@dataclass(frozen=True)
class Position:
    """Figures of one position by method: exact, given the emitted token, and from draws."""

    expected: dict[str, float]
    given_token: dict[str, float]
    measured: dict[str, float]
    bound: float
    entropy: float


def position(
    p: FloatArray, q: FloatArray, q_temperature: FloatArray, token: int, measured: dict[str, float]
) -> Position:
    """The exact figures at one position at which the target emits `token`."""
    by_token = {
        "independent": p * q,
        "temperature_only": coupled_matches(p, q_temperature),
        "coupled": coupled_matches(p, q),
        "rejection": np.minimum(p, q),
    }
    expected = {name: float(terms.sum()) for name, terms in by_token.items()}
    given_token = {name: float(terms[token] / p[token]) for name, terms in by_token.items()}
    overlap = expected["rejection"]
    return Position(expected, given_token, measured, overlap / (2 - overlap), _entropy(p))


def measure(
    p: torch.Tensor, q: torch.Tensor, q_temperature: torch.Tensor, addresses: IntArray, keys: range
) -> dict[str, FloatArray]:
    """Share of draws, one per key, in which the first draft token of each row is accepted."""
    accepted: dict[str, FloatArray] = {name: np.zeros(len(p)) for name in METHODS}
    all_rows = np.arange(len(p))
    rng = np.random.default_rng([keys.start, *addresses.tolist()])
    for number in keys:
        key = np.full(len(p), number)
        target = exponential_race_rows(p, key, addresses)
        independent = exponential_race_rows(q, key + INDEPENDENT, addresses)
        accepted["independent"] += independent == target
        accepted["temperature_only"] += exponential_race_rows(q_temperature, key, addresses) == target
        accepted["coupled"] += exponential_race_rows(q, key, addresses) == target
        p_x, q_x = (probs[all_rows, independent].double().numpy() for probs in (p, q))
        accepted["rejection"] += accepts(rng.random(len(p)), p_x, q_x)
    return {name: count / len(keys) for name, count in accepted.items()}


def ratio_interval(numerators: Sequence[Sequence[float]], denominators: Sequence[Sequence[float]]) -> Any:
    """Ratio of the means with its 95 % bootstrap interval; prompts are resampled, not positions."""
    sums = np.array([[sum(above), sum(below)] for above, below in zip(numerators, denominators, strict=True)])
    rng = np.random.default_rng(0)
    resampled = sums[rng.integers(0, len(sums), (RESAMPLES, len(sums)))].sum(axis=1)
    low, high = np.quantile(resampled[:, 0] / resampled[:, 1], [0.025, 0.975])
    above, below = sums.sum(axis=0)
    return [float(above / below), float(low), float(high)]


def summarise(
    temperature: float, settings: str, outputs: Sequence[Sequence[Position]], num_draws: int
) -> dict[str, Any]:
    """The line of one cell. The standard error is that of `measured` around `expected`."""
    every = [each for positions in outputs for each in positions]
    expected = {
        name: [[each.expected[name] for each in positions] for positions in outputs] for name in METHODS
    }
    lengths = {
        name: [
            expected_accepted_along([each.given_token[name] for each in positions], DRAFT_LENGTH)
            for positions in outputs
        ]
        for name in METHODS
    }
    return {
        "temperature": temperature,
        "settings": settings,
        "num_contexts": len(every),
        "expected": {name: _mean(found) for name, found in expected.items()},
        "measured": {name: float(np.mean([each.measured[name] for each in every])) for name in METHODS},
        "standard_error": {
            name: _standard_error([each.expected[name] for each in every], num_draws) for name in METHODS
        },
        "bound": float(np.mean([each.bound for each in every])),
        "entropy": float(np.mean([each.entropy for each in every])),
        "ratio": ratio_interval(expected["coupled"], expected["rejection"]),
        "accepted_length": {name: _mean(found) for name, found in lengths.items()},
        "length_ratio": ratio_interval(lengths["coupled"], lengths["rejection"]),
    }


def _entropy(p: FloatArray) -> float:
    """In nats."""
    possible = p[p > 0]
    return float(-(possible * np.log(possible)).sum())


def _standard_error(expected: Sequence[float], num_draws: int) -> float:
    """Of the mean share over positions, each with this many draws."""
    share = np.array(expected)
    return float(np.sqrt((share * (1 - share)).sum() / num_draws) / len(share))


def _mean(by_request: Sequence[Sequence[float]]) -> float:
    return float(np.mean([value for values in by_request for value in values]))
