"""The target's likeliest next tokens at the rows of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from forerun.types.arrays import Float32Array

Int32Array: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class TopTokens:
    """The likeliest next tokens at verified rows, by the target's logits before any sampling setting.

    Attributes:
        contexts: The last two tokens up to each row, [rows, 2].
        tokens: The likeliest next tokens of each row, most likely first, [rows, number].
        probs: Their probabilities, of the same shape.
    """

    contexts: Int32Array
    tokens: Int32Array
    probs: Float32Array

    def __len__(self) -> int:
        return len(self.contexts)

    def select(self, rows: Sequence[int] | npt.NDArray[np.integer[Any]]) -> TopTokens:
        """These rows, in this order."""
        return TopTokens(self.contexts[rows], self.tokens[rows], self.probs[rows])
