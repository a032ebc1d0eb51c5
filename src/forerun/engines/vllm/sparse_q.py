"""q of draft tokens that a drafter sampled in the scheduler, on its way to the sampler in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from forerun.types import Draft, Float32Array, IntArray


@dataclass(frozen=True, slots=True)
class SparseQ:
    """For each token of a sampled chain: the tokens of positive probability under its q, and these."""

    tokens: Sequence[IntArray]
    probs: Sequence[Float32Array]

    @classmethod
    def of(cls, draft: Draft) -> SparseQ:
        """The q of a chain whose tokens are all sampled."""
        rows = [torch.as_tensor(each.probs).numpy() for each in draft.proposals_of_nodes().values()]
        tokens = [np.flatnonzero(row) for row in rows]
        return cls(tokens, [row[each] for row, each in zip(rows, tokens, strict=True)])

    def dense(self, num_rows: int, vocab_size: int) -> torch.Tensor:
        """The first rows, [rows, vocabulary]."""
        q = torch.zeros(num_rows, vocab_size)
        for row, tokens, probs in zip(q, self.tokens, self.probs, strict=False):
            row[torch.from_numpy(tokens)] = torch.from_numpy(probs)
        return q
