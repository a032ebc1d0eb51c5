"""The likeliest next tokens of a context, as drafters store them: token ids and coded probabilities.

A code is a probability on a logarithmic scale, in one byte. Votes depend on it through a table.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from forerun.core.jit import compiled
from forerun.drafters.matches import Ints
from forerun.types import Float32Array, FloatArray, TopTokens

ByteArray: TypeAlias = npt.NDArray[np.uint8]

NUM_SUCCESSORS: Final = 8
"""Next tokens stored per context."""

NUM_CODES: Final = 256
_CODES_PER_OCTAVE: Final = 8

CODED_PROBS: Final[FloatArray] = 2.0 ** (-np.arange(NUM_CODES) / _CODES_PER_OCTAVE)
"""The probability that each code stands for."""


@compiled
def encode(prob: float) -> int:
    """The code of a probability, within 5 % down to 1e-9."""
    if not prob > 0.0:
        return NUM_CODES - 1
    return int(min(max(np.rint(-_CODES_PER_OCTAVE * np.log2(prob)), 0.0), NUM_CODES - 1.0))


@compiled
def write_successors(tokens: Ints, probs: Float32Array, successors: Ints, codes: ByteArray) -> None:
    """Write the likeliest tokens and the codes of their probabilities, `NUM_SUCCESSORS` of each.

    Rows of a small vocabulary are filled with their last token, which gets hardly any votes.
    """
    num = min(len(tokens), NUM_SUCCESSORS)
    for i in range(num):
        successors[i], codes[i] = tokens[i], encode(probs[i])
    for i in range(num, NUM_SUCCESSORS):
        successors[i], codes[i] = tokens[num - 1], NUM_CODES - 1


def encode_successors(top_tokens: TopTokens) -> tuple[Ints, ByteArray]:
    """The successors and codes of every row."""
    successors = np.empty((len(top_tokens), NUM_SUCCESSORS), dtype=np.int32)
    codes = np.empty((len(top_tokens), NUM_SUCCESSORS), dtype=np.uint8)
    for row in range(len(top_tokens)):
        write_successors(top_tokens.tokens[row], top_tokens.probs[row], successors[row], codes[row])
    return successors, codes
