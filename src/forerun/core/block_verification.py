"""`block`: verify a sampled chain jointly (Sun et al. 2024, algorithm 2).

Where `reject` stops at the first guess that fails, `block` keeps the longest prefix that passes a test of
its own, and keeps at least as many guesses on average. The law of what is emitted is the same.
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
    """Emit tokens with the law of p: u[row] judges the prefix ending there, v[request] draws the last token.

    A prefix weighs w, which starts at 1 and becomes min(1, w p(x) / q(x)) with each guess x; it is kept as
    a / b, so that nothing is divided. Every prefix is tried, and the longest that passes stands.
    """
    if (forest.next_sibling != NONE).any():
        raise InvalidDraft("block verifies chains, and this draft branches: use reject")
    here = forest.roots.copy()
    a, b = np.ones(forest.num_requests, v.dtype), np.ones(forest.num_requests, v.dtype)
    kept, kept_a, kept_b = here.copy(), a.copy(), b.copy()
    walking = np.arange(forest.num_requests)
    while walking.size:
        rows = here[walking]
        passed = _passes(forest, rows, p, a[walking], b[walking], u)
        stays = walking[passed]
        kept[stays], kept_a[stays], kept_b[stays] = here[stays], a[stays], b[stays]
        going = forest.first_child[rows] != NONE
        rows, walking = rows[going], walking[going]
        here[walking] = guesses = forest.first_child[rows]
        p_x, q_x = arrays.token_probs(p, rows, forest.tokens[guesses]), forest.q_of(guesses)
        a[walking], b[walking] = arrays.rescale_pair(
            np.minimum(a[walking] * p_x, b[walking] * q_x), b[walking] * q_x
        )
    next_tokens = sample_inverse_cdf(_left_to_say(forest, kept, arrays.copy_rows(p, kept), kept_a, kept_b), v)
    return forest.verdicts(kept, next_tokens)


def _passes(forest: Forest, rows: IntArray, p: RowSource, a: PerRow, b: PerRow, u: PerRow) -> BoolArray:
    """Which prefixes pass: with chance w at the end of the chain, before it s / (s + 1 - w).

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
    """The mass of `_surplus`."""
    drawn = forest.sampled[forest.first_child[rows]]
    mass = np.empty(len(rows), dtype=a.dtype)
    if drawn.any():
        q = forest.q_rows(rows[drawn])
        mass[drawn] = residual_mass(arrays.read_each_row(p, rows[drawn]), q, b[drawn], a[drawn])
    if not drawn.all():
        some = arrays.copy_rows(p, rows[~drawn])
        mass[~drawn] = arrays.row_sums(_surplus(forest, rows[~drawn], some, a[~drawn], b[~drawn]))
    return mass


def _surplus(forest: Forest, rows: IntArray, p: VocabRows, a: PerRow, b: PerRow) -> VocabRows:
    """max(w p - q, 0) times b, where q is what the child of each row was drawn from."""
    guesses = forest.first_child[rows]
    chosen = np.flatnonzero(~forest.sampled[guesses])
    drawn = np.flatnonzero(forest.sampled[guesses])
    surplus = arrays.scale_rows(p, a) if chosen.size else p
    arrays.zero_entries(surplus, chosen, forest.tokens[guesses[chosen]])
    if drawn.size:
        q = forest.q_rows(rows[drawn])
        surplus = arrays.overwrite_rows(
            surplus, drawn, residual(arrays.read_rows(p, drawn), q, b[drawn], a[drawn])
        )
    return surplus


def _left_to_say(forest: Forest, rows: IntArray, p: VocabRows, a: PerRow, b: PerRow) -> VocabRows:
    """What the last token is drawn from: p at the end of a chain, else the surplus.

    Where rounding leaves no surplus (in exact arithmetic such a prefix is never the longest), p again.
    """
    stopped = np.flatnonzero(forest.first_child[rows] != NONE)
    if stopped.size:
        surplus = _surplus(forest, rows[stopped], arrays.read_rows(p, stopped), a[stopped], b[stopped])
        mass = arrays.row_sums(surplus)
        p = arrays.overwrite_rows(p, stopped[mass > 0], arrays.read_rows(surplus, np.flatnonzero(mass > 0)))
    return p
