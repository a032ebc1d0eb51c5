"""The rows of logits behind which a draft model drafts, as distributions of the next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.core.batch_sampling import BatchSampling
from forerun.core.exponential_race import race_confidences
from forerun.core.logits_processors import RowContext, apply_logits_processors
from forerun.core.logits_warper import probabilities
from forerun.core.noise import signed
from forerun.core.tensors import torch
from forerun.types import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class DraftRows:
    """Sampling settings, preceding tokens, position and seed of each row."""

    settings: BatchSampling
    contexts: Sequence[RowContext]
    positions: IntArray
    seeds: Sequence[int | None]

    def distributions(self, logits: torch.Tensor) -> torch.Tensor:
        """q of each row."""
        return probabilities(logits, self.settings, self.contexts)

    def confidences(self, logits: torch.Tensor) -> torch.Tensor:
        """How likely the target emits each token: for greedy rows q at temperature 1, for seeded ones an
        estimate of the probability that the token wins the target's race at its position.
        """
        confidences = torch.softmax(processed_logits(logits, self.settings, self.contexts), dim=-1)
        seeded = np.flatnonzero(~self.settings.greedy)
        if len(seeded):
            keys = np.array([signed(self.seeds[i] or 0) for i in seeded.tolist()], dtype=np.int64)
            contexts = [self.contexts[i] for i in seeded.tolist()]
            q = probabilities(logits[seeded], self.settings[seeded], contexts)
            confidences[seeded] = race_confidences(q, keys, self.positions[seeded])
        return confidences


def processed_logits(
    logits: torch.Tensor, settings: BatchSampling, contexts: Sequence[RowContext]
) -> torch.Tensor:
    """The logits after the logits processors, as a copy."""
    processed = logits.clone()
    apply_logits_processors(processed, settings, contexts)
    return processed
