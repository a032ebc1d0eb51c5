"""The drafts of a batch, packed into rows without padding.

Request b owns rows start[b] to start[b + 1] - 1: first the row of its last committed token (its root), then
one row per draft token in the order of the draft. An engine lays out its logits the same way: row i holds the
target's logits after the token of row i. The forest holds topology, not target probabilities.
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
"""No such row: the parent of a root, the child of a leaf, the next sibling of a last child."""


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """One tree per request; every array except `start` has one entry per row.

    `proposals` has the distribution that each sampled row was sampled from.
    """

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
        """Pack drafts one after another and validate them."""
        sizes = np.array([len(draft.tokens) for draft in drafts], dtype=np.int64)
        _check_lengths(drafts, sizes)
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
            _check_order(drafts, inner, sizes)
        proposals = {
            int(start[request]) + 1 + node: proposal
            for request in np.flatnonzero([draft.sampled.any() for draft in drafts]).tolist()
            for node, proposal in _proposals_of(request, drafts[request]).items()
        }
        first_child, next_sibling = _link(parent)
        return cls(start, tokens, parent, _depths(parent), first_child, next_sibling, sampled, proposals)

    @property
    def num_requests(self) -> int:
        """Number of requests in the batch."""
        return len(self.start) - 1

    @property
    def num_rows(self) -> int:
        """Number of rows that the target model computes."""
        return int(self.start[-1])

    @property
    def roots(self) -> IntArray:
        """Row of each request's last committed token."""
        return self.start[:-1]

    def request_of(self, rows: IntArray) -> IntArray:
        """The request that owns each row."""
        return np.searchsorted(self.start, rows, side="right") - 1

    def path(self, row: int) -> list[int]:
        """The draft tokens from the root to this row, inclusive."""
        tokens: list[int] = []
        while self.parent[row] != NONE:
            tokens.append(int(self.tokens[row]))
            row = int(self.parent[row])
        return tokens[::-1]

    def q_of_tokens(self, nodes: IntArray) -> PerRow:
        """q(x) of each draft token x; 1 for chosen draft tokens."""
        sampled = np.flatnonzero(self.sampled[nodes])
        q_x: list[Any] = [1] * len(nodes)
        for i, number in zip(
            sampled.tolist(),
            arrays.gather(self.q_rows(nodes[sampled]), self.tokens[nodes[sampled]].tolist()),
            strict=True,
        ):
            q_x[i] = number
        numbers = np.array(q_x)
        if not (numbers > 0).all():
            raise InvalidDraft(
                "q(x) of a sampled draft token is 0 or NaN, so it was not sampled from q;"
                " pass the q it was sampled from"
            )
        return numbers

    def q_rows(self, nodes: IntArray) -> list[Distribution]:
        """The distributions that these sampled nodes were sampled from."""
        return [self.proposals[node].probs for node in nodes.tolist()]

    def earlier_sampled_siblings(self, nodes: IntArray) -> tuple[IntArray, IntArray]:
        """Siblings sampled before each of these nodes from the same q, where that was without replacement.

        Returns pairs (i, token) for nodes[i], as two arrays: nodes[i] could not have been that token.
        """
        which, tokens = [], []
        for i, node in enumerate(nodes.tolist()):
            parent = int(self.parent[node])
            sibling = int(self.first_child[parent])
            if sibling == node or not self.sampled[node] or self.proposals[node].replacement:
                continue
            while sibling != node:
                if self.proposals.get(sibling) is self.proposals[node]:
                    if self.tokens[sibling] == self.tokens[node]:
                        raise InvalidDraft(
                            f"token {self.tokens[node]} was sampled twice from a q without replacement;"
                            " set replacement=True or sample distinct siblings"
                        )
                    which.append(i)
                    tokens.append(int(self.tokens[sibling]))
                sibling = int(self.next_sibling[sibling])
        return np.array(which, dtype=np.int64), np.array(tokens, dtype=np.int64)

    def child_with(self, rows: IntArray, tokens: IntArray) -> IntArray:
        """The first child of each row with this token, or `NONE`."""
        child = self.first_child[rows]
        while (other := (child != NONE) & (self.tokens[child] != tokens)).any():
            child = np.where(other, self.next_sibling[child], child)
        return child

    def first_descendants(self, rows: IntArray, max_depth: int) -> IntArray:
        """[rows, max_depth]: first child of each row, its first child, and so on; `NONE` past the end."""
        descendants = np.full((len(rows), max_depth), NONE)
        for generation in range(max_depth):
            there = rows != NONE
            rows = np.where(there, self.first_child[rows], NONE)
            descendants[:, generation] = rows
        return descendants

    def verdicts(self, last: IntArray, next_tokens: IntArray) -> list[Verdict]:
        """Each request's verdict: the path to its last accepted row, then its next token."""
        verdicts = []
        for root, row, token in zip(self.roots.tolist(), last.tolist(), next_tokens.tolist(), strict=True):
            accepted = []
            while row != root:
                accepted.append(row - root - 1)
                row = int(self.parent[row])  # noqa: PLW2901
            verdicts.append(Verdict(tuple(reversed(accepted)), token))
        return verdicts

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise unless every token and q fits this vocabulary and every q is float32."""
        drafted = self.tokens[self.parent != NONE]
        if len(drafted) and not (drafted.min() >= 0 and drafted.max() < vocab_size):
            raise InvalidDraft(
                f"draft tokens range from {drafted.min()} to {drafted.max()};"
                f" the vocabulary has {vocab_size} tokens"
            )
        sizes = {len(proposal.probs) for proposal in self.proposals.values()} - {vocab_size}
        if sizes:
            raise VocabularyMismatch(
                f"q has {min(sizes)} tokens, the target {vocab_size}; pad or truncate q if the vocabularies"
                " agree on the shared tokens, or use a draft model of the same family"
            )
        kinds = {proposal.probs.dtype for proposal in self.proposals.values()}
        if other := {str(kind) for kind in kinds} - {"torch.float32"}:
            raise InvalidDraft(f"q is {other.pop()}; sample from a float32 q and pass that q")


def _proposals_of(request: int, draft: Draft) -> dict[int, Proposal]:
    """The distribution of every sampled node; the error names the request."""
    try:
        return draft.proposals_of_nodes()
    except InvalidDraft as error:
        raise InvalidDraft(f"request {request}: {error}") from None


def _link(parent: IntArray) -> tuple[IntArray, IntArray]:
    """First child and next sibling of each row, in row order."""
    first_child, next_sibling = np.full(len(parent), NONE), np.full(len(parent), NONE)
    nodes = np.flatnonzero(parent != NONE)
    by_parent = nodes[np.argsort(parent[nodes], kind="stable")]
    same = parent[by_parent[1:]] == parent[by_parent[:-1]]
    next_sibling[by_parent[:-1][same]] = by_parent[1:][same]
    is_first = np.concatenate([[True], ~same])[: len(by_parent)]
    first_child[parent[by_parent[is_first]]] = by_parent[is_first]
    return first_child, next_sibling


def _depths(parent: IntArray) -> IntArray:
    """Number of draft tokens between each row and its root."""
    depth = np.zeros(len(parent), dtype=np.int64)
    ancestor = parent.copy()
    while (above := ancestor != NONE).any():
        depth += above
        ancestor = np.where(above, parent[ancestor], NONE)
    return depth


def _check_lengths(drafts: Sequence[Draft], sizes: IntArray) -> None:
    """Raise if a draft's arrays have different lengths."""
    parents = np.array([len(draft.parents) for draft in drafts], dtype=np.int64)
    flags = np.array([len(draft.sampled) for draft in drafts], dtype=np.int64)
    for request in np.flatnonzero((parents != sizes) | (flags != sizes)).tolist():
        drafts[request].check()


def _check_order(drafts: Sequence[Draft], parents: IntArray, sizes: IntArray) -> None:
    """Raise if a parent does not precede its children."""
    position = np.arange(len(parents)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wrong = np.flatnonzero((parents < NONE) | (parents >= position))
    if wrong.size:
        drafts[int(np.searchsorted(np.cumsum(sizes), wrong[0], side="right"))].check()
