"""The drafts of a batch, packed row after row without padding.

Request b owns the rows start[b] to start[b + 1]: first the row of its last committed token (its root),
then one row per guess, in the draft's own order. This is also how an engine lays out its logits: row i
holds what the target says after the token of row i. The forest knows topology, not probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.core import arrays
from forerun.core.arrays import PerRow
from forerun.errors import InvalidDraft, VocabularyMismatch
from forerun.types import BoolArray, Distribution, Draft, IntArray, Proposal, Verdict

NONE = -1
"""No such row: the parent of a root, the child of a leaf, the sibling of a last child."""


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """One tree per request; every array but `start` has one entry per row."""

    start: IntArray
    tokens: IntArray
    parent: IntArray
    depth: IntArray
    first_child: IntArray
    next_sibling: IntArray
    sampled: BoolArray
    proposals: Mapping[int, Proposal]

    @classmethod
    def pack(cls, drafts: Sequence[Draft]) -> Forest:
        """Lay the drafts out one after another, checking their contract on the way."""
        sizes = np.array([len(draft.tokens) for draft in drafts], dtype=np.int64)
        _demand_equal_lengths(drafts, sizes)
        start = np.concatenate([[0], np.cumsum(sizes + 1)])
        is_node = np.ones(start[-1], dtype=bool)
        is_node[start[:-1]] = False
        tokens, parent = (np.full(start[-1], NONE) for _ in range(2))
        sampled = np.zeros(start[-1], dtype=bool)
        if is_node.any():
            tokens[is_node] = np.concatenate([draft.tokens for draft in drafts])
            inner = np.concatenate([draft.parents for draft in drafts])
            parent[is_node] = inner + 1 + np.repeat(start[:-1], sizes)
            sampled[is_node] = np.concatenate([draft.sampled for draft in drafts])
            _demand_order(drafts, inner, sizes)
        proposals = {
            root + 1 + node: proposal
            for root, draft in zip(start[:-1].tolist(), drafts, strict=True)
            for node, proposal in draft.q.items()
            if -1 <= node < len(draft)
        }
        first_child, next_sibling = _link(parent)
        forest = cls(start, tokens, parent, _depths(parent), first_child, next_sibling, sampled, proposals)
        forest._demand_proposals()
        return forest

    @property
    def num_requests(self) -> int:
        """How many requests the batch has."""
        return len(self.start) - 1

    @property
    def num_rows(self) -> int:
        """How many rows the target computes."""
        return int(self.start[-1])

    @property
    def roots(self) -> IntArray:
        """Each request's first row, where its last committed token stands."""
        return self.start[:-1]

    def request_of(self, rows: IntArray) -> IntArray:
        """Which request owns each row."""
        return np.searchsorted(self.start, rows, side="right") - 1

    def path(self, row: int) -> list[int]:
        """The guessed tokens from the root to this row, itself included."""
        tokens: list[int] = []
        while self.parent[row] != NONE:
            tokens.append(int(self.tokens[row]))
            row = int(self.parent[row])
        return tokens[::-1]

    def q_of(self, guesses: IntArray) -> PerRow:
        """q(x) of each guess x: what it was drawn with, or 1 where it was chosen."""
        drawn = np.flatnonzero(self.sampled[guesses])
        parents, tokens = self.parent[guesses[drawn]].tolist(), self.tokens[guesses[drawn]].tolist()
        q_x: list[Any] = [1] * len(guesses)
        for i, number in zip(
            drawn.tolist(), arrays.gather([self.proposals[row].probs for row in parents], tokens), strict=True
        ):
            q_x[i] = number
        numbers = np.array(q_x)
        if not (numbers > 0).all():
            raise InvalidDraft(
                "a sampled guess has q(x) = 0 or NaN, so it was not drawn from q: keep the q drawn from"
            )
        return numbers

    def q_rows(self, parents: IntArray) -> list[Distribution]:
        """The distributions that the sampled children of these rows were drawn from."""
        return [self.proposals[row].probs for row in parents.tolist()]

    def earlier_sampled_siblings(self, guesses: IntArray) -> tuple[IntArray, IntArray]:
        """Tokens that these guesses could not be: sampled siblings before them, drawn without replacement.

        Pairs (i, token) for guesses[i], as two arrays.
        """
        which, tokens = [], []
        for i, guess in enumerate(guesses.tolist()):
            parent = int(self.parent[guess])
            sibling = int(self.first_child[parent])
            if sibling == guess or not self.sampled[guess] or self.proposals[parent].replacement:
                continue
            while sibling != guess:
                if self.sampled[sibling]:
                    if self.tokens[sibling] == self.tokens[guess]:
                        raise InvalidDraft(f"token {self.tokens[guess]} was drawn twice without replacement")
                    which.append(i)
                    tokens.append(int(self.tokens[sibling]))
                sibling = int(self.next_sibling[sibling])
        return np.array(which, dtype=np.int64), np.array(tokens, dtype=np.int64)

    def child_with(self, rows: IntArray, tokens: IntArray) -> IntArray:
        """The first child of each row that guesses this token, or `NONE`."""
        child = self.first_child[rows]
        while (other := (child != NONE) & (self.tokens[child] != tokens)).any():
            child = np.where(other, self.next_sibling[child], child)
        return child

    def first_descendants(self, rows: IntArray, most: int) -> IntArray:
        """[rows, most]: the first child of each row, its first child, and so on; `NONE` where it ends."""
        descendants = np.full((len(rows), most), NONE)
        for generation in range(most):
            there = rows != NONE
            rows = np.where(there, self.first_child[rows], NONE)
            descendants[:, generation] = rows
        return descendants

    def verdicts(self, last: IntArray, next_tokens: IntArray) -> list[Verdict]:
        """The verdict of each request: everything on the way to its last kept row, then its next token."""
        verdicts = []
        for root, row, token in zip(self.roots.tolist(), last.tolist(), next_tokens.tolist(), strict=True):
            kept = []
            while row != root:
                kept.append(row - root - 1)
                row = int(self.parent[row])  # noqa: PLW2901
            verdicts.append(Verdict(tuple(reversed(kept)), token))
        return verdicts

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise unless every token and every q is of this vocabulary, and every q in float32."""
        guessed = self.tokens[self.parent != NONE]
        if len(guessed) and not (guessed.min() >= 0 and guessed.max() < vocab_size):
            raise InvalidDraft(
                f"guesses run from token {guessed.min()} to {guessed.max()}; the vocabulary has {vocab_size}"
            )
        sizes = {len(proposal.probs) for proposal in self.proposals.values()} - {vocab_size}
        if sizes:
            raise VocabularyMismatch(
                f"a q over {min(sizes)} tokens came for a target of {vocab_size}; pad or cut it where the"
                " token tables agree, or choose a draft of the same family"
            )
        kinds = {proposal.probs.dtype for proposal in self.proposals.values()}
        if other := {str(kind) for kind in kinds} - {"torch.float32"}:
            raise InvalidDraft(f"q came as {other.pop()}; draw from float32, and keep that")

    def _demand_proposals(self) -> None:
        """Raise where a sampled guess came without the q it was drawn from."""
        for row in np.unique(self.parent[self.sampled]).tolist():
            if row not in self.proposals:
                raise InvalidDraft(
                    f"request {self.request_of(np.array([row]))[0]}: sampled children came without the q they"
                    " were drawn from; keep the q of the draw"
                )


def _link(parent: IntArray) -> tuple[IntArray, IntArray]:
    """First children and next siblings, in the order of the rows."""
    first_child, next_sibling = np.full(len(parent), NONE), np.full(len(parent), NONE)
    nodes = np.flatnonzero(parent != NONE)
    by_parent = nodes[np.argsort(parent[nodes], kind="stable")]
    same = parent[by_parent[1:]] == parent[by_parent[:-1]]
    next_sibling[by_parent[:-1][same]] = by_parent[1:][same]
    is_first = np.concatenate([[True], ~same])[: len(by_parent)]
    first_child[parent[by_parent[is_first]]] = by_parent[is_first]
    return first_child, next_sibling


def _depths(parent: IntArray) -> IntArray:
    """How many guesses lie between each row and its root."""
    depth = np.zeros(len(parent), dtype=np.int64)
    ancestor = parent.copy()
    while (above := ancestor != NONE).any():
        depth += above
        ancestor = np.where(above, parent[ancestor], NONE)
    return depth


def _demand_equal_lengths(drafts: Sequence[Draft], sizes: IntArray) -> None:
    """Raise where a draft's arrays disagree about how many nodes it has."""
    parents = np.array([len(draft.parents) for draft in drafts], dtype=np.int64)
    marks = np.array([len(draft.sampled) for draft in drafts], dtype=np.int64)
    for request in np.flatnonzero((parents != sizes) | (marks != sizes)).tolist():
        drafts[request].check()


def _demand_order(drafts: Sequence[Draft], parents: IntArray, sizes: IntArray) -> None:
    """Raise where a parent does not come before its children."""
    position = np.arange(len(parents)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wrong = np.flatnonzero((parents < NONE) | (parents >= position))
    if wrong.size:
        drafts[int(np.searchsorted(np.cumsum(sizes), wrong[0], side="right"))].check()
