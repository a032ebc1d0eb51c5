"""Rejection sampling of draft tokens (Leviathan et al., algorithm 1), for chains and trees.

The children of a node are verified in turn against the residual of p, so chains and trees share one function
(Stratos, section 2; Miao et al. 2024). A chosen draft token counts as sampled from a point mass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.core import arrays
from forerun.core.acceptance import accepts, residual, sample_inverse_cdf, sample_residual
from forerun.core.arrays import PerRow, RowSource, VocabRows
from forerun.core.draft_forest import NONE, Forest
from forerun.types import BoolArray, Distribution, IntArray, Verdict

STRIDE = 8
"""Number of draft tokens verified at once; work on those after a rejected one is discarded."""


def rejection_sample(forest: Forest, p: RowSource, u: PerRow, v: PerRow) -> list[Verdict]:
    """Emit tokens distributed as p: u[row] tests the draft token at row, v[request] samples the next token.

    All requests advance side by side. Each descends its first children while they are accepted, then verifies
    the siblings of the rejected one. It continues below an accepted sibling, or samples its next token.
    """
    here = forest.roots.copy()
    next_tokens = np.zeros(forest.num_requests, dtype=np.int64)
    active = np.arange(forest.num_requests)
    while active.size:
        here[active] = _descend(forest, here[active], p, u)
        active = _resample_only_children(forest, active, here, p, v, next_tokens)
        rows = here[active]
        siblings = SiblingVerifier(forest, rows, arrays.copy_rows(p, rows))
        child = siblings.first_accepted(u)
        ended = np.flatnonzero(child == NONE)
        finished = active[ended]
        next_tokens[finished] = sample_inverse_cdf(arrays.read_rows(siblings.p, ended), v[finished])
        active = active[child != NONE]
        here[active] = child[child != NONE]
    return forest.verdicts(here, next_tokens)


def _descend(forest: Forest, rows: IntArray, p: RowSource, u: PerRow) -> IntArray:
    """The row each request reaches while first children are accepted; reads only p(x) of each row."""
    rows = rows.copy()
    moving = np.arange(len(rows))
    while moving.size:
        descendants = forest.first_descendants(rows[moving], STRIDE)
        exists = descendants != NONE
        nodes = descendants[exists]
        accepted = np.zeros(descendants.shape, dtype=bool)
        p_x = arrays.token_probs(p, forest.parent[nodes], forest.tokens[nodes])
        accepted[exists] = accepts(u[nodes], p_x, forest.q_of_tokens(nodes))
        num_accepted = np.logical_and.accumulate(accepted, axis=1).sum(axis=1)
        moved = num_accepted > 0
        rows[moving[moved]] = descendants[moved, num_accepted[moved] - 1]
        moving = moving[num_accepted == STRIDE]
    return rows


def _resample_only_children(
    forest: Forest, active: IntArray, here: IntArray, p: RowSource, v: PerRow, next_tokens: IntArray
) -> IntArray:
    """Sample the recovered token where the only child, a sampled one, was rejected.

    Returns the remaining requests. This is the most common outcome, and it needs only one sample from the
    residual. Where rounding leaves no residual, the request remains for `SiblingVerifier`.
    """
    child = forest.first_child[here[active]]
    only = (child != NONE) & (forest.next_sibling[child] == NONE) & forest.sampled[child]
    if not only.any():
        return active
    requests = active[only]
    rows = here[requests]
    tokens = sample_residual(arrays.read_each_row(p, rows), forest.q_rows(child[only]), v[requests])
    next_tokens[requests] = tokens
    return np.concatenate([active[~only], requests[tokens < 0]])


class SiblingVerifier:
    """Verifies the children of one row per request in turn, and holds the residual of p meanwhile.

    p starts normalised and loses mass with each rejection; the mass is stored next to it, not divided out.
    """

    def __init__(self, forest: Forest, rows: IntArray, p: VocabRows) -> None:
        self.forest = forest
        self.rows = rows
        self.p = p
        self.p_mass = arrays.ones_like_rows(p)

    def first_accepted(self, u: PerRow) -> IntArray:
        """The first accepted child of each request, or `NONE`: then `p` holds the residual to sample from.

        A first child that `_descend` rejected is tested with the same u and is rejected again.
        """
        accepted = np.full(len(self.rows), NONE)
        child = self.forest.first_child[self.rows]
        pending = np.flatnonzero(child != NONE)
        while pending.size:
            passed = self._verify_siblings(pending, child[pending], u)
            accepted[pending[passed]] = child[pending[passed]]
            pending = pending[~passed]
            child[pending] = self.forest.next_sibling[child[pending]]
            pending = pending[child[pending] != NONE]
        return accepted

    def _verify_siblings(self, at: IntArray, nodes: IntArray, u: PerRow) -> BoolArray:
        """Which nodes are accepted. Rejected ones are subtracted from p unless that leaves no mass.

        In that case the node is accepted if p(x) > 0. In exact arithmetic this never happens: p equals q
        there and every draft token is accepted. In floats it corrects a rounding error.
        """
        p_x = arrays.entries(self.p, at, self.forest.tokens[nodes])
        q_x = self.forest.q_of_tokens(nodes)
        accepted: BoolArray = accepts(u[nodes], p_x, q_x, self.p_mass[at], self._q_mass(nodes))
        rejected = np.flatnonzero(~accepted)
        if rejected.size:
            has_mass = self._subtract_rejected(at[rejected], nodes[rejected])
            accepted[rejected] = ~has_mass & (p_x[rejected] > 0)
        return accepted

    def _subtract_rejected(self, at: IntArray, nodes: IntArray) -> BoolArray:
        """Replace p by the residual of the rejected nodes where it has mass; returns where it has."""
        rest, mass = arrays.normalize_exponent(self._residual_of(at, nodes))
        has_mass: BoolArray = mass > 0
        reduced = np.flatnonzero(has_mass)
        self.p = arrays.overwrite_rows(self.p, at[reduced], arrays.read_rows(rest, reduced))
        self.p_mass[at[reduced]] = mass[reduced]
        return has_mass

    def _residual_of(self, at: IntArray, nodes: IntArray) -> VocabRows:
        """The residual of p after each node is rejected: without its token if chosen, else max(p - q, 0)."""
        chosen = np.flatnonzero(~self.forest.sampled[nodes])
        sampled = np.flatnonzero(self.forest.sampled[nodes])
        rest = arrays.copy_rows(self.p, at) if chosen.size else arrays.read_rows(self.p, at)
        arrays.zero_entries(rest, chosen, self.forest.tokens[nodes[chosen]])
        if sampled.size:
            q, q_mass = self._q(nodes[sampled])
            p = arrays.read_rows(rest, sampled)
            rest = arrays.overwrite_rows(rest, sampled, residual(p, q, self.p_mass[at[sampled]], q_mass))
        return rest

    def _q(self, nodes: IntArray) -> tuple[Sequence[Distribution], PerRow]:
        """q of each node, without earlier siblings if sampled without replacement, and its mass."""
        q: Sequence[Distribution] = self.forest.q_rows(nodes)
        mass = arrays.ones_like_rows(self.p)[: len(nodes)]
        rows, tokens = self.forest.earlier_sampled_siblings(nodes)
        if rows.size:
            q = arrays.stack(q)
            arrays.zero_entries(q, rows, tokens)
            changed = np.unique(rows)
            mass[changed] = arrays.row_sums(arrays.read_rows(q, changed))
        return q, mass

    def _q_mass(self, nodes: IntArray) -> PerRow:
        """Mass of the q that each node was sampled from: 1 except after siblings without replacement."""
        mass = arrays.ones_like_rows(self.p)[: len(nodes)]
        later = np.unique(self.forest.earlier_sampled_siblings(nodes)[0])
        if later.size:
            mass[later] = self._q(nodes[later])[1]
        return mass
