"""What is known of one place where the current context was seen before: a row of numbers.

Sightings are gathered from several sources (the request's own text, earlier outputs, corpora) into one
array, and a tree is grown from all of them. The columns: how many tokens of context match, which source it
comes from, how often it was counted, where it is in its source, and from `AHEAD` on the tokens that
followed there, `BREAK` where that text ended.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int32]

MATCH: Final = 0
SOURCE: Final = 1
COUNT: Final = 2
PLACE: Final = 3
AHEAD: Final = 4

OWN: Final = 0
SHARED: Final = 1
CORPUS: Final = 2
SOURCES: Final = ("own", "shared", "corpus")
NUM_SOURCES: Final = len(SOURCES)

BREAK: Final = -1
"""Stands between two texts and after the end of one; no token has this number."""

LONGEST: Final = 32
"""Matches are measured up to this length: beyond it, more context says nothing new."""
