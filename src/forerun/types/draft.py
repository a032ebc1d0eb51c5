"""Drafts: a request's draft tokens as a tree, and the distributions that some were sampled from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from types import MappingProxyType

import numpy as np

from forerun.errors import InvalidDraft
from forerun.types.arrays import BoolArray, Distribution, Float32Array, IntArray

ROOT = -1
"""The parent of a draft token that directly follows the last committed token."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """The distribution q that the sampled children of one node were sampled from.

    Verification compares p with this q, so it must be the exact distribution the tokens were sampled from:
    after temperature and truncation, in float32, over the target's vocabulary. Another q (rounded, or before
    truncation) changes the output distribution.

    Attributes:
        probs: q, one-dimensional and normalised: a float32 torch tensor, or an array of Fractions.
        replacement: Whether siblings were sampled with replacement. If False, each sibling was sampled from q
            without the tokens of the siblings before it, renormalised.
    """

    probs: Distribution
    replacement: bool = True


_NO_PROPOSALS: Mapping[int, Proposal | tuple[Proposal, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """One request's draft: a tree of draft tokens in topological order.

    Node i proposes `tokens[i]` as the token after node `parents[i]`, or after the last committed token if the
    parent is `ROOT` (-1). Parents precede their children. A chain is a tree with one branch; `Draft.chain`
    builds one. An empty draft is valid: the request then decodes one token without speculation.

    A node is either *sampled* from a distribution q (draft models) or *chosen* deterministically (n-gram and
    suffix lookups). The output stays lossless only under these conditions:

    - The number of sampled nodes is fixed before sampling. A sampled node is never dropped because of its
      value; `truncate` and `select` raise `InvalidDraft` if they would.
    - Sampled siblings keep the order in which they were sampled, and a token sampled twice stays two nodes.
      Merging or sorting siblings biases the output.
    - A chosen node may depend on the values of sampled siblings before it, never on later ones.

    Attributes:
        tokens: Token id of each node, int64.
        parents: Index of each node's parent, or -1.
        sampled: Whether each node was sampled from a q (True) or chosen (False).
        q: For each parent with sampled children, the `Proposal` they were sampled from, or a tuple with one
            for each of them in their order; key -1 is the root. Siblings with different distributions are
            verified in turn (iterative rejection sampling).
        source: Name of the drafter of each node, for statistics.
        survival: The drafter's estimate for each node that it and its ancestors are accepted, or None. The
            controller calibrates it and plans draft lengths by it; verification ignores it.

    Examples:
        >>> chain = Draft.chain([5, 6, 7])
        >>> chain.parents.tolist()
        [-1, 0, 1]
        >>> tree = Draft(np.array([5, 6, 8]), np.array([-1, 0, -1]), np.zeros(3, dtype=bool))
        >>> tree.path(1), tree.depth
        ([0, 1], 2)
    """

    tokens: IntArray
    parents: IntArray
    sampled: BoolArray
    q: Mapping[int, Proposal | tuple[Proposal, ...]] = field(default_factory=lambda: _NO_PROPOSALS)
    source: tuple[str, ...] = ()
    survival: Float32Array | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int] | IntArray,
        *,
        q: Sequence[Proposal] = (),
        source: str = "",
        survival: Float32Array | None = None,
    ) -> Draft:
        """A chain of these tokens: sampled if `q` has one proposal per token, otherwise chosen."""
        num = len(tokens)
        if q and len(q) != num:
            raise InvalidDraft(
                f"got {num} sampled tokens and {len(q)} distributions; pass one distribution per token"
            )
        return cls(
            tokens=np.asarray(tokens, dtype=np.int64),
            parents=np.arange(-1, num - 1, dtype=np.int64),
            sampled=np.full(num, bool(q)),
            q={node - 1: proposal for node, proposal in enumerate(q)},
            source=(source,) * num,
            survival=survival,
        )

    @property
    def is_chain(self) -> bool:
        """Whether every node is the child of the node before it."""
        parents: list[int] = self.parents.tolist()
        return parents == [*range(-1, len(self) - 1)]  # faster than arrays at this size

    @property
    def depth(self) -> int:
        """Length of the longest path, in draft tokens."""
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return max(depths, default=0)

    def truncate(self, num_nodes: int) -> Draft:
        """The draft of the first `num_nodes` nodes.

        Raises `InvalidDraft` if a sampled node would be dropped: dropping a node after it was sampled changes
        the output distribution. Choose the number of nodes before sampling.
        """
        if num_nodes >= len(self):
            return self
        self._check_none_sampled(self.sampled[num_nodes:])
        if not num_nodes:
            return _EMPTY_DRAFT
        return Draft(
            tokens=self.tokens[:num_nodes],
            parents=self.parents[:num_nodes],
            sampled=self.sampled[:num_nodes],
            q=self.q,
            source=self.source[:num_nodes],
            survival=None if self.survival is None else self.survival[:num_nodes],
        )

    def select(self, kept: BoolArray) -> Draft:
        """The draft of the nodes where `kept` is true; the parent of a kept node must be kept.

        Raises `InvalidDraft` if a sampled node would be dropped, like `truncate`.
        """
        num = int(np.count_nonzero(kept))
        if kept[:num].all():
            return self.truncate(num)
        self._check_none_sampled(self.sampled[~kept])
        new_index = np.cumsum(kept) - 1
        parents = self.parents[kept]
        if not kept[parents[parents != ROOT]].all():
            raise InvalidDraft("a kept node has a dropped parent: keep the parent of every kept node")
        return Draft(
            tokens=self.tokens[kept],
            parents=np.where(parents == ROOT, ROOT, new_index[parents]),
            sampled=self.sampled[kept],
            q={
                ROOT if parent == ROOT else int(new_index[parent]): q
                for parent, q in self.q.items()
                if parent == ROOT or kept[parent]
            },
            source=tuple(compress(self.source, kept)),
            survival=None if self.survival is None else self.survival[kept],
        )

    def _check_none_sampled(self, dropped: BoolArray) -> None:
        """Raise if any dropped node was sampled."""
        if np.count_nonzero(dropped):
            raise InvalidDraft("cannot drop a sampled draft token: sample fewer tokens instead")

    def path(self, node: int) -> list[int]:
        """The nodes from the root to this node, inclusive."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = int(self.parents[node])
        return nodes[::-1]

    def check(self, vocab_size: int | None = None) -> None:
        """Raise `InvalidDraft` if the contract is broken; `core` checks whole batches the same way."""
        num = len(self.tokens)
        if not len(self.parents) == len(self.sampled) == num:
            raise InvalidDraft(
                f"got {num} tokens, {len(self.parents)} parents and {len(self.sampled)} entries of `sampled`;"
                " each node needs one of each"
            )
        tokens, parents = self.tokens.tolist(), self.parents.tolist()  # faster than arrays at this size
        for node, parent in enumerate(parents if parents != [*range(-1, num - 1)] else ()):
            if not ROOT <= parent < node:
                raise InvalidDraft(
                    f"node {node} has parent {parent}; a parent precedes its children or is {ROOT}"
                )
        if self.tokens.dtype.kind not in "iu":
            raise InvalidDraft(f"tokens have dtype {self.tokens.dtype}; expected an integer dtype")
        top = math.inf if vocab_size is None else vocab_size
        if num and not (min(tokens) >= 0 and max(tokens) < top):
            raise InvalidDraft(
                f"tokens range from {min(tokens)} to {max(tokens)}; the vocabulary has {top} tokens"
            )
        if True in self.sampled.tolist():
            self.proposals_of_nodes()

    def proposals_of_nodes(self) -> dict[int, Proposal]:
        """The proposal that each sampled node was sampled from; raises `InvalidDraft` if one is missing."""
        found: dict[int, Proposal] = {}
        num_before: dict[int, int] = {}
        for node in np.flatnonzero(self.sampled).tolist():
            parent = int(self.parents[node])
            q = self.q.get(parent)
            if isinstance(q, tuple):
                number = num_before.get(parent, 0)
                num_before[parent] = number + 1
                q = q[number] if number < len(q) else None
            if q is None:
                raise InvalidDraft(
                    f"sampled children of node {parent} have no q; pass the q they were sampled from"
                )
            found[node] = q
        return found


_EMPTY_DRAFT = Draft.chain([])
