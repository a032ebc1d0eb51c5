"""Block verification of sampled chains (Sun et al. 2024, algorithm 2).

`rejection_sample` stops at the first rejected draft token. `block_verify` tests every prefix of the chain
jointly and accepts the longest one that passes; it accepts at least as many draft tokens on average. The
output distribution is the same.
"""

from __future__ import annotations

import numpy as np

from forerun.core import arrays
from forerun.core.acceptance import residual, residual_mass, sample_inverse_cdf
from forerun.core.arrays import PerRow, RowSource, VocabRows
from forerun.core.draft_forest import NONE, Forest
from forerun.errors import InvalidDraft
from forerun.types import BoolArray, IntArray, Verdict


def block_verify(forest: Forest, p: RowSource, u: PerRow, v: PerRow) -> list[Verdict]:
    """Emit tokens distributed as p: u[row] tests the prefix ending at row, v[request] samples the next token.

    A prefix has weight w, which starts at 1 and becomes min(1, w p(x) / q(x)) with each draft token x. The
    weight is stored as the fraction a / b to avoid division. Every prefix is tested and the longest one that
    passes is accepted.
    """
    if (forest.next_sibling != NONE).any():
        raise InvalidDraft("block verification needs a chain; got a tree: use rejection_sample")
    here = forest.roots.copy()
    a, b = np.ones(forest.num_requests, v.dtype), np.ones(forest.num_requests, v.dtype)
    last, last_a, last_b = here.copy(), a.copy(), b.copy()
    active = np.arange(forest.num_requests)
    while active.size:
        rows = here[active]
        passed = _accepts_prefix(forest, rows, p, a[active], b[active], u)
        accepted = active[passed]
        last[accepted], last_a[accepted], last_b[accepted] = here[accepted], a[accepted], b[accepted]
        has_child = forest.first_child[rows] != NONE
        rows, active = rows[has_child], active[has_child]
        here[active] = children = forest.first_child[rows]
        p_x, q_x = arrays.token_probs(p, rows, forest.tokens[children]), forest.q_of_tokens(children)
        a[active], b[active] = arrays.rescale_pair(
            np.minimum(a[active] * p_x, b[active] * q_x), b[active] * q_x
        )
    weights = _next_token_weights(forest, last, arrays.copy_rows(p, last), last_a, last_b)
    return forest.verdicts(last, sample_inverse_cdf(weights, v))


def _accepts_prefix(
    forest: Forest, rows: IntArray, p: RowSource, a: PerRow, b: PerRow, u: PerRow
) -> BoolArray:
    """Which prefixes pass: with probability w at the end of the chain, before the end s / (s + 1 - w).

    s is the mass of max(w p - q, 0). The empty prefix always passes.
    """
    passed = np.ones(len(rows), dtype=bool)
    inner = forest.parent[rows] != NONE
    at_end = inner & (forest.first_child[rows] == NONE)
    passed[at_end] = u[rows[at_end]] * b[at_end] < a[at_end]
    before = inner & ~at_end
    if before.any():
        s = _surplus_mass(forest, rows[before], p, a[before], b[before])
        passed[before] = u[rows[before]] * (s + b[before] - a[before]) < s
    return passed


def _surplus_mass(forest: Forest, rows: IntArray, p: RowSource, a: PerRow, b: PerRow) -> PerRow:
    """The row sums of `_surplus`."""
    children = forest.first_child[rows]
    sampled = forest.sampled[children]
    mass = np.empty(len(rows), dtype=a.dtype)
    if sampled.any():
        q = forest.q_rows(children[sampled])
        mass[sampled] = residual_mass(arrays.read_each_row(p, rows[sampled]), q, b[sampled], a[sampled])
    if not sampled.all():
        p_chosen = arrays.copy_rows(p, rows[~sampled])
        mass[~sampled] = arrays.row_sums(_surplus(forest, rows[~sampled], p_chosen, a[~sampled], b[~sampled]))
    return mass


def _surplus(forest: Forest, rows: IntArray, p: VocabRows, a: PerRow, b: PerRow) -> VocabRows:
    """b max(w p - q, 0), where q is the distribution of each row's child."""
    children = forest.first_child[rows]
    chosen = np.flatnonzero(~forest.sampled[children])
    sampled = np.flatnonzero(forest.sampled[children])
    surplus = arrays.scale_rows(p, a) if chosen.size else p
    arrays.zero_entries(surplus, chosen, forest.tokens[children[chosen]])
    if sampled.size:
        q = forest.q_rows(children[sampled])
        surplus = arrays.overwrite_rows(
            surplus, sampled, residual(arrays.read_rows(p, sampled), q, b[sampled], a[sampled])
        )
    return surplus


def _next_token_weights(forest: Forest, rows: IntArray, p: VocabRows, a: PerRow, b: PerRow) -> VocabRows:
    """Weights of the next token: p at the end of a chain, otherwise the surplus.

    Falls back to p where rounding leaves no surplus; in exact arithmetic such a prefix is never the longest.
    """
    stopped = np.flatnonzero(forest.first_child[rows] != NONE)
    if stopped.size:
        surplus = _surplus(forest, rows[stopped], arrays.read_rows(p, stopped), a[stopped], b[stopped])
        mass = arrays.row_sums(surplus)
        p = arrays.overwrite_rows(p, stopped[mass > 0], arrays.read_rows(surplus, np.flatnonzero(mass > 0)))
    return p
