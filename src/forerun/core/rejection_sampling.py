"""`reject`: keep a sampled guess as often as the target would have said it.

Algorithm 1 of Leviathan et al., with the children of a node tried in turn against what is left of p, so
that chains and trees are one function (Stratos, section 2; Miao et al. 2024). A chosen guess is one drawn
from a point mass.
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
"""Guesses that are judged in one go, though those behind a refused one are judged for nothing."""


def rejection_sample(forest: Forest, p: RowSource, u: PerRow, v: PerRow) -> list[Verdict]:
    """Emit tokens with the law of p: u[row] judges the guess at that row, v[request] draws its last token.

    All requests side by side: each goes down its first guesses while they stand, then tries the siblings of
    the one that did not; it goes on from there, or says another token.
    """
    here = forest.roots.copy()
    next_tokens = np.zeros(forest.num_requests, dtype=np.int64)
    walking = np.arange(forest.num_requests)
    while walking.size:
        here[walking] = _descend(forest, here[walking], p, u)
        walking = _end_at_only_guesses(forest, walking, here, p, v, next_tokens)
        rows = here[walking]
        crossing = SiblingVerifier(forest, rows, arrays.copy_rows(p, rows))
        kept = crossing.first_accepted(u)
        ended = np.flatnonzero(kept == NONE)
        who = walking[ended]
        next_tokens[who] = sample_inverse_cdf(arrays.read_rows(crossing.p, ended), v[who])
        walking = walking[kept != NONE]
        here[walking] = kept[kept != NONE]
    return forest.verdicts(here, next_tokens)


def _descend(forest: Forest, rows: IntArray, p: RowSource, u: PerRow) -> IntArray:
    """How far down each request gets while first guesses stand; p(x) alone is read of p."""
    rows = rows.copy()
    going = np.arange(len(rows))
    while going.size:
        guesses = forest.first_descendants(rows[going], STRIDE)
        there = guesses != NONE
        some = guesses[there]
        standing = np.zeros(guesses.shape, dtype=bool)
        p_x = arrays.token_probs(p, forest.parent[some], forest.tokens[some])
        standing[there] = accepts(u[some], p_x, forest.q_of(some))
        num_kept = np.logical_and.accumulate(standing, axis=1).sum(axis=1)
        moved = num_kept > 0
        rows[going[moved]] = guesses[moved, num_kept[moved] - 1]
        going = going[num_kept == STRIDE]
    return rows


def _end_at_only_guesses(
    forest: Forest, walking: IntArray, here: IntArray, p: RowSource, v: PerRow, next_tokens: IntArray
) -> IntArray:
    """Say another token where the only guess, a drawn one, was refused; the requests that are left.

    This is what most requests come to, and nothing but the draw has to be worked out for it. Where rounding
    leaves nothing to draw from, a request is left for the `Crossing` to decide.
    """
    guess = forest.first_child[here[walking]]
    only = (guess != NONE) & (forest.next_sibling[guess] == NONE) & forest.sampled[guess]
    if not only.any():
        return walking
    who = walking[only]
    tokens = sample_residual(arrays.read_each_row(p, here[who]), forest.q_rows(here[who]), v[who])
    next_tokens[who] = tokens
    return np.concatenate([walking[~only], who[tokens < 0]])


class SiblingVerifier:
    """Where requests stand before their guesses, and what is left of p there as one after another is refused.

    p starts as a distribution and then loses mass, which is kept beside it rather than divided out.
    """

    def __init__(self, forest: Forest, rows: IntArray, p: VocabRows) -> None:
        self.forest = forest
        self.rows = rows
        self.p = p
        self.p_mass = arrays.ones_like_rows(p)

    def first_accepted(self, u: PerRow) -> IntArray:
        """The child each request moves to, or `NONE`: then p holds what is left to draw from.

        A first guess that has failed before meets the same number again, and fails again.
        """
        kept = np.full(len(self.rows), NONE)
        guess = self.forest.first_child[self.rows]
        trying = np.flatnonzero(guess != NONE)
        while trying.size:
            standing = self._judge(trying, guess[trying], u)
            kept[trying[standing]] = guess[trying[standing]]
            trying = trying[~standing]
            guess[trying] = self.forest.next_sibling[guess[trying]]
            trying = trying[guess[trying] != NONE]
        return kept

    def _judge(self, at: IntArray, guesses: IntArray, u: PerRow) -> BoolArray:
        """Which guesses stand. The others are taken out of p; where nothing would be left, they stand too.

        In exact arithmetic that exception never applies: where q leaves nothing of p, p is q and every
        guess stands. In floats it turns a rounding error into the right answer.
        """
        p_x = arrays.entries(self.p, at, self.forest.tokens[guesses])
        q_x = self.forest.q_of(guesses)
        standing: BoolArray = accepts(u[guesses], p_x, q_x, self.p_mass[at], self._q_mass(guesses))
        refused = np.flatnonzero(~standing)
        if refused.size:
            something_left = self._take_out(at[refused], guesses[refused])
            standing[refused] = ~something_left & (p_x[refused] > 0)
        return standing

    def _take_out(self, at: IntArray, guesses: IntArray) -> BoolArray:
        """Reduce p to what is left after these guesses were refused, where anything is left; say where."""
        left, mass = arrays.normalize_exponent(self._left(at, guesses))
        something_left: BoolArray = mass > 0
        some = np.flatnonzero(something_left)
        self.p = arrays.overwrite_rows(self.p, at[some], arrays.read_rows(left, some))
        self.p_mass[at[some]] = mass[some]
        return something_left

    def _left(self, at: IntArray, guesses: IntArray) -> VocabRows:
        """What each refused guess leaves of p: all but itself if it was chosen, else the residual."""
        chosen = np.flatnonzero(~self.forest.sampled[guesses])
        drawn = np.flatnonzero(self.forest.sampled[guesses])
        left = arrays.copy_rows(self.p, at) if chosen.size else arrays.read_rows(self.p, at)
        arrays.zero_entries(left, chosen, self.forest.tokens[guesses[chosen]])
        if drawn.size:
            q, q_mass = self._q(guesses[drawn])
            p = arrays.read_rows(left, drawn)
            left = arrays.overwrite_rows(left, drawn, residual(p, q, self.p_mass[at[drawn]], q_mass))
        return left

    def _q(self, guesses: IntArray) -> tuple[Sequence[Distribution], PerRow]:
        """What each guess was drawn from: q, less the siblings before it if they were not replaced."""
        q: Sequence[Distribution] = self.forest.q_rows(self.forest.parent[guesses])
        mass = arrays.ones_like_rows(self.p)[: len(guesses)]
        rows, tokens = self.forest.earlier_sampled_siblings(guesses)
        if rows.size:
            q = arrays.stack(q)
            arrays.zero_entries(q, rows, tokens)
            changed = np.unique(rows)
            mass[changed] = arrays.row_sums(arrays.read_rows(q, changed))
        return q, mass

    def _q_mass(self, guesses: IntArray) -> PerRow:
        """How much of q each guess was drawn from: 1, but for later siblings drawn without replacement."""
        mass = arrays.ones_like_rows(self.p)[: len(guesses)]
        later = np.unique(self.forest.earlier_sampled_siblings(guesses)[0])
        if later.size:
            mass[later] = self._q(guesses[later])[1]
        return mass
