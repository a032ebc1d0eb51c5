"""`follow`: keep the guesses that the target itself takes.

The engine says, for each row, which token the target takes there: its most likely one, or its own sample
drawn with noise that belongs to the position. What is emitted is therefore what plain decoding emits,
whatever was guessed and however. Stratos, appendix A, for trees.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.core import arrays
from forerun.core.draft_forest import NONE, Forest
from forerun.types import Verdict


def match_target(forest: Forest, taken: Any) -> list[Verdict]:
    """Walk from each root while a child is the token the target takes; that token comes next.

    `taken` gives the target's own token at the rows it is asked for: an array, or anything that computes
    tokens on demand, since rows behind a wrong guess are never asked for.
    """
    here = forest.roots.copy()
    next_tokens = np.zeros(forest.num_requests, dtype=np.int64)
    walking = np.arange(forest.num_requests)
    while walking.size:
        tokens = np.asarray(arrays.copy_rows(taken, here[walking]), dtype=np.int64)
        next_tokens[walking] = tokens
        child = forest.child_with(here[walking], tokens)
        walking = walking[child != NONE]
        here[walking] = child[child != NONE]
    return forest.verdicts(here, next_tokens)
