"""Acceptance of drafts at the positions of outputs: alpha, the LK divergence, coupling and lenience.

Leviathan et al., sections 3.2, 4.2 and A.5. Figures are exact at each position, not shares of accepted draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from forerun.bench.ratios import ratio_of_sums
from forerun.core import theory
from forerun.models.runner import Runner
from forerun.theory.draft_distributions import DraftDistribution
from forerun.theory.target_text import TargetText, output_logits, standardize
from forerun.types import FloatArray

LENIENCES: Final = (0.5, 0.3, 0.1)
"""The values of table 5, besides 1."""

ALL: Final = "all"
"""The name of results over all categories."""


@dataclass(frozen=True, slots=True)
class TextAcceptance:
    """The acceptance of one kind of draft at every position of an output.

    `alphas` are by lenience; 1 is lossless. `distances` are those of the emitted distribution from p.
    `given_token` is the acceptance probability given the emitted token.
    """

    draft: str
    text: TargetText
    alphas: dict[float, FloatArray]
    distances: dict[float, FloatArray]
    coupled: FloatArray
    given_token: FloatArray


def measure_acceptance(
    target: Runner, drafts: Sequence[DraftDistribution], text: TargetText
) -> list[TextAcceptance]:
    """The acceptance of each kind of draft along an output."""
    logits = output_logits(target, text)
    p = standardize(logits, text.temperature)
    p_at_1 = p if text.temperature == 1.0 else standardize(logits, 1.0)
    return [_measure(draft.name, text, p, p_at_1, draft.rows(text, logits)) for draft in drafts]


def _measure(
    name: str, text: TargetText, p: torch.Tensor, p_at_1: torch.Tensor, q: torch.Tensor
) -> TextAcceptance:
    p_rows, q_rows = (each.double().numpy(force=True) for each in (p, q))
    pairs = list(zip(p_rows, q_rows, strict=True))

    def at_positions(figure: Callable[[FloatArray, FloatArray], float]) -> FloatArray:
        return np.array([figure(p_row, q_row) for p_row, q_row in pairs])

    alphas = {1.0: at_positions(theory.acceptance)}
    distances: dict[float, FloatArray] = {}
    if text.temperature == 0:
        alphas |= _greedy_lenience(p_at_1, q)
    else:
        for lenience in LENIENCES:
            alphas[lenience] = at_positions(partial(theory.acceptance, lenience=lenience))
            distances[lenience] = at_positions(partial(theory.lenient_distance, lenience=lenience))
    at = (np.arange(len(text.output)), np.array(text.output))
    p_x, q_x = p_rows[at], q_rows[at]
    return TextAcceptance(
        name,
        text,
        alphas,
        distances,
        coupled=at_positions(lambda p_row, q_row: float(theory.coupled_matches(p_row, q_row).sum())),
        given_token=np.minimum(1.0, np.divide(q_x, p_x, out=q_x.copy(), where=p_x > 0)),
    )


def _greedy_lenience(p_at_1: torch.Tensor, q: torch.Tensor) -> dict[float, FloatArray]:
    """Acceptance at temperature 0: the draft's token has at least l times the largest p at temperature 1."""
    largest = p_at_1.amax(dim=-1, keepdim=True)
    return {
        lenience: (q * (p_at_1 >= lenience * largest)).sum(dim=-1).double().numpy(force=True)
        for lenience in LENIENCES
    }


def summarize_acceptance(found: Iterable[TextAcceptance]) -> list[dict[str, Any]]:
    """One row per kind of draft, temperature and category, and one over all categories.

    Intervals of 95 % are from resampling outputs.
    """
    groups: dict[tuple[str, float, str], list[TextAcceptance]] = {}
    for each in found:
        for category in (each.text.prompt.category, ALL):
            groups.setdefault((each.draft, each.text.temperature, category), []).append(each)
    return [
        {"draft": draft, "temperature": temperature, "category": category} | _summarize(group)
        for (draft, temperature, category), group in groups.items()
    ]


def _summarize(group: Sequence[TextAcceptance]) -> dict[str, Any]:
    lengths = np.array([len(each.text.output) for each in group], dtype=np.float64)
    alpha = ratio_of_sums(np.array([each.alphas[1.0].sum() for each in group]), lengths)
    return {
        "num_outputs": len(group),
        "num_tokens": int(lengths.sum()),
        "alpha": alpha.value,
        "interval": [alpha.low, alpha.high] if len(group) > 1 else None,
        "lk_divergence": 1.0 - alpha.value,
        "coupled": _mean([each.coupled for each in group]),
        "lenient": [
            {
                "lenience": lenience,
                "alpha": _mean([each.alphas[lenience] for each in group]),
                "distance": _mean([each.distances[lenience] for each in group])
                if lenience in group[0].distances
                else None,
            }
            for lenience in LENIENCES
        ],
    }


def _mean(positions: Sequence[FloatArray]) -> float:
    return float(np.concatenate(positions).mean())
