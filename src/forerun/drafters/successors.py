"""The likeliest next tokens of a context, as drafters store them: token ids and coded probabilities.

A code is a probability on a logarithmic scale, in one byte. Votes depend on it through a table.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from forerun.drafters.matches import Ints
from forerun.types import Float32Array, FloatArray, TopTokens

ByteArray: TypeAlias = npt.NDArray[np.uint8]

NUM_SUCCESSORS: Final = 8
"""Next tokens stored per context."""

NUM_CODES: Final = 256
_CODES_PER_OCTAVE: Final = 8

CODED_PROBS: Final[FloatArray] = 2.0 ** (-np.arange(NUM_CODES) / _CODES_PER_OCTAVE)
"""The probability that each code stands for."""


def encode_probs(probs: Float32Array) -> ByteArray:
    """The codes of probabilities, each within 5 % down to 1e-9."""
    with np.errstate(divide="ignore"):
        exact = np.rint(-_CODES_PER_OCTAVE * np.log2(probs))
    codes: ByteArray = np.clip(exact, 0, NUM_CODES - 1).astype(np.uint8)
    return codes


def encode_successors(top_tokens: TopTokens) -> tuple[Ints, ByteArray]:
    """The likeliest tokens and the codes of their probabilities, `NUM_SUCCESSORS` of each.

    Rows of a small vocabulary are filled with their last token, which gets hardly any votes.
    """
    tokens, codes = top_tokens.tokens[:, :NUM_SUCCESSORS], encode_probs(top_tokens.probs[:, :NUM_SUCCESSORS])
    num_missing = NUM_SUCCESSORS - tokens.shape[1]
    if num_missing:
        tokens = np.pad(tokens, ((0, 0), (0, num_missing)), mode="edge")
        codes = np.pad(codes, ((0, 0), (0, num_missing)), constant_values=NUM_CODES - 1)
    return np.ascontiguousarray(tokens), codes
