"""Verification by matching: accept draft tokens that equal the tokens the target model emits itself.

The target token of a row is the argmax, or a sample drawn with the noise of that position. The output is
therefore identical to non-speculative decoding, whatever was drafted and by which drafter. Covers chains and
trees (Stratos, appendix A).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.core import arrays
from forerun.core.draft_forest import NONE, Forest
from forerun.types import Verdict


def match_target(forest: Forest, target_tokens: Any) -> list[Verdict]:
    """Descend from each root while a child equals the target token; the last target token comes next.

    `target_tokens` is indexed by row: an array, or an object that computes tokens on demand, because rows
    behind a rejected draft token are never requested.
    """
    here = forest.roots.copy()
    next_tokens = np.zeros(forest.num_requests, dtype=np.int64)
    active = np.arange(forest.num_requests)
    while active.size:
        tokens = np.asarray(arrays.copy_rows(target_tokens, here[active]), dtype=np.int64)
        next_tokens[active] = tokens
        child = forest.child_with(here[active], tokens)
        active = active[child != NONE]
        here[active] = child[child != NONE]
    return forest.verdicts(here, next_tokens)
