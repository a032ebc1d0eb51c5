"""Lenient verification: accepts more draft tokens than is lossless, within a stated bound; labelled lossy.

Leviathan et al., appendix A.5, with the inequality of the greedy case corrected: draft token x is accepted
if p(x) >= l max(p).
"""

from __future__ import annotations

import numpy as np

from forerun.core import arrays
from forerun.core.arrays import PerRow, RowSource
from forerun.core.draft_forest import NONE, Forest
from forerun.core.rejection_sampling import rejection_sample
from forerun.errors import InvalidDistribution
from forerun.types import IntArray, Verdict


def lenient(forest: Forest, p: RowSource, u: PerRow, v: PerRow, lenience: PerRow) -> list[Verdict]:
    """`rejection_sample` with q multiplied by the request's lenience l before the comparison with p.

    Equivalent to multiplying u by l. No token becomes more than 1/l times as likely as under p. The residual
    is still max(p - q, 0), which deviates least from p among all residuals with the same acceptance.
    """
    owner = forest.request_of(np.arange(forest.num_rows))
    return rejection_sample(forest, p, u * lenience[owner], v)


def lenient_greedy(forest: Forest, p: RowSource, lenience: PerRow) -> list[Verdict]:
    """Accept the most likely child while its p is at least l times the largest; then emit the argmax.

    p is the model's distribution at temperature 1, since at temperature 0 every other token has p = 0.
    """
    here = forest.roots.copy()
    next_tokens = np.zeros(forest.num_requests, dtype=np.int64)
    active = np.arange(forest.num_requests)
    while active.size:
        p_here = arrays.copy_rows(p, here[active])
        next_tokens[active], top = arrays.row_argmax(p_here)
        if not (top > 0).all():
            raise InvalidDistribution("a row of p is NaN, so it has no most likely token; check the logits")
        child, p_child = _most_likely_child(forest, here[active], p_here)
        accepted = (child != NONE) & (p_child >= lenience[active] * top)
        active = active[accepted]
        here[active] = child[accepted]
    return forest.verdicts(here, next_tokens)


def _most_likely_child(forest: Forest, rows: IntArray, p: PerRow) -> tuple[IntArray, PerRow]:
    """The child of each row with the largest p, the first of equals, and its p; 0 without children."""
    best, p_best = np.full(len(rows), NONE), arrays.ones_like_rows(p) * 0
    child = forest.first_child[rows]
    while (has_child := np.flatnonzero(child != NONE)).size:
        p_x = arrays.entries(p, has_child, forest.tokens[child[has_child]])
        better = has_child[(p_x > p_best[has_child]) | (best[has_child] == NONE)]
        best[better] = child[better]
        p_best[has_child] = np.maximum(p_best[has_child], p_x)
        child[has_child] = forest.next_sibling[child[has_child]]
    return best, p_best
