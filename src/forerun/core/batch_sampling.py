"""Sampling settings of a batch as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.types import BoolArray, FloatArray, IntArray, SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class BatchSampling:
    """One entry per row. Settings that few rows use (bias, penalties, ...) are read from `params`."""

    params: Sequence[SamplingParams]
    temperature: FloatArray
    greedy: BoolArray
    top_k: IntArray
    top_p: FloatArray
    min_p: FloatArray
    has_processors: BoolArray

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> BatchSampling:
        """Collect the settings of a batch."""
        greedy = np.array([each.greedy for each in params], dtype=bool)
        temperature = np.array([each.temperature for each in params], dtype=np.float64)
        return cls(
            params=params,
            temperature=np.where(greedy, 1.0, temperature),
            greedy=greedy,
            top_k=np.array([each.top_k for each in params], dtype=np.int64),
            top_p=np.array([each.top_p for each in params], dtype=np.float64),
            min_p=np.array([each.min_p for each in params], dtype=np.float64),
            has_processors=np.array([has_logits_processors(each) for each in params], dtype=bool),
        )

    def __getitem__(self, rows: IntArray) -> BatchSampling:
        """The settings of these rows, in this order; rows may repeat."""
        return BatchSampling(
            params=[self.params[row] for row in rows.tolist()],
            temperature=self.temperature[rows],
            greedy=self.greedy[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            has_processors=self.has_processors[rows],
        )


def has_logits_processors(params: SamplingParams) -> bool:
    """Whether the request uses logit bias, allowed tokens, bad words or penalties."""
    return params.looks_back or bool(params.logit_bias) or params.allowed_token_ids is not None
