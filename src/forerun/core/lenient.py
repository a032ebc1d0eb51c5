"""`lenient`: keep more than is lossless, within a stated bound. Always labelled lossy.

Leviathan et al., appendix A.5, with the inequality of the greedy case the right way round: a guess x
stands while p(x) >= l max(p).
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
    """`reject` with q multiplied by the request's lenience l before it is compared with p.

    That is to multiply u by l. No token becomes more than 1/l times as likely as it should be. What is left
    after a refusal is still max(p - q, 0): of all corrections that keep the acceptance, it strays least.
    """
    owner = forest.request_of(np.arange(forest.num_rows))
    return rejection_sample(forest, p, u * lenience[owner], v)


def lenient_greedy(forest: Forest, p: RowSource, lenience: PerRow) -> list[Verdict]:
    """Keep the likeliest child while its p is at least l times the largest; then the most likely token.

    p is the model's own distribution (temperature 1), since at temperature 0 every other token has p = 0.
    """
    here = forest.roots.copy()
    next_tokens = np.zeros(forest.num_requests, dtype=np.int64)
    walking = np.arange(forest.num_requests)
    while walking.size:
        p_here = arrays.copy_rows(p, here[walking])
        next_tokens[walking], top = arrays.row_argmax(p_here)
        if not (top > 0).all():
            raise InvalidDistribution("a row has no most likely token: its p is NaN; check the logits")
        child, p_child = _likeliest_child(forest, here[walking], p_here)
        stands = (child != NONE) & (p_child >= lenience[walking] * top)
        walking = walking[stands]
        here[walking] = child[stands]
    return forest.verdicts(here, next_tokens)


def _likeliest_child(forest: Forest, rows: IntArray, p: PerRow) -> tuple[IntArray, PerRow]:
    """The child of each row whose token p favours, the first of equals; and its p, 0 where there is none."""
    best, p_best = np.full(len(rows), NONE), arrays.ones_like_rows(p) * 0
    child = forest.first_child[rows]
    while (there := np.flatnonzero(child != NONE)).size:
        p_x = arrays.entries(p, there, forest.tokens[child[there]])
        better = there[(p_x > p_best[there]) | (best[there] == NONE)]
        best[better] = child[better]
        p_best[there] = np.maximum(p_best[there], p_x)
        child[there] = forest.next_sibling[child[there]]
    return best, p_best
