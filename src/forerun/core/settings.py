"""Sampling settings of many rows at once, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.types import BoolArray, FloatArray, IntArray, SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """One entry per row. What only a few rows have (bias, penalties and the like) is read from `params`."""

    params: Sequence[SamplingParams]
    temperature: FloatArray
    greedy: BoolArray
    top_k: IntArray
    top_p: FloatArray
    min_p: FloatArray
    has_rules: BoolArray

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> Settings:
        """Gather the settings of a batch."""
        greedy = np.array([each.greedy for each in params], dtype=bool)
        temperature = np.array([each.temperature for each in params], dtype=np.float64)
        return cls(
            params=params,
            temperature=np.where(greedy, 1.0, temperature),
            greedy=greedy,
            top_k=np.array([each.top_k for each in params], dtype=np.int64),
            top_p=np.array([each.top_p for each in params], dtype=np.float64),
            min_p=np.array([each.min_p for each in params], dtype=np.float64),
            has_rules=np.array([has_rules(each) for each in params], dtype=bool),
        )

    def __getitem__(self, rows: IntArray) -> Settings:
        """The settings of these rows, in this order; rows may repeat."""
        return Settings(
            params=[self.params[row] for row in rows.tolist()],
            temperature=self.temperature[rows],
            greedy=self.greedy[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            has_rules=self.has_rules[rows],
        )


def has_rules(params: SamplingParams) -> bool:
    """Whether single tokens are treated differently: bias, allowed tokens, bad words, penalties."""
    return params.looks_back or bool(params.logit_bias) or params.allowed_token_ids is not None
