"""A match: one earlier occurrence of the current context, as a row of numbers.

Matches from several sources (the request's own text, earlier outputs, corpora) are collected in one array,
from which a tree is grown. The columns are the length of the match in tokens, its source, its count, its
position in the source, and from `CONTINUATION` on the tokens that followed it, `BREAK` after the end of that
text.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int32]

MATCH_LENGTH: Final = 0
SOURCE: Final = 1
COUNT: Final = 2
POSITION: Final = 3
CONTINUATION: Final = 4

OWN: Final = 0
SHARED: Final = 1
CORPUS: Final = 2

BREAK: Final = -1
"""Separates two texts and marks the end of one; no token has this id."""

MAX_MATCH: Final = 32
"""Maximum match length measured: more context adds no information."""
