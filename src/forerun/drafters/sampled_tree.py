"""Draft trees sampled from a draft model: several siblings per node, without replacement.

The shape of a tree is chosen before any of its tokens is sampled, by how often siblings of each rank were
accepted in earlier steps. SpecInfer (Miao et al. 2024) has a fixed number of children per depth instead.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

import numpy as np

from forerun.core.acceptance import sample_inverse_cdf
from forerun.core.tensors import torch
from forerun.core.token_tree import tokens_above
from forerun.models.input_rows import COMMITTED
from forerun.types import ROOT, Draft, FloatArray, IntArray, Proposal, Verdict

MAX_SIBLINGS: Final = 8
"""Maximum number of children of a node."""

_PRIOR_RATES: Final = 0.5 * 0.6 ** np.arange(MAX_SIBLINGS)
"""Acceptance of a sibling by rank, if the siblings before it were rejected, before the first observation."""

_PRIOR_WEIGHT: Final = 20.0
"""The number of observations that the prior counts for."""


class SiblingRates:
    """How often a sibling of each rank is accepted if those before it were rejected; learnt from verdicts."""

    def __init__(self) -> None:
        self._accepted: FloatArray = np.multiply(_PRIOR_RATES, _PRIOR_WEIGHT, dtype=np.float64)
        self._offered: FloatArray = np.full(MAX_SIBLINGS, _PRIOR_WEIGHT)

    @property
    def probs(self) -> FloatArray:
        """The probability that the sibling of each rank is the accepted one."""
        rates = self._accepted / self._offered
        return rates * np.cumprod(np.append(1.0, 1.0 - rates[:-1]))

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Count the siblings at every node that was reached."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(draft.parents.tolist()):
            children.setdefault(parent, []).append(node)
        accepted = set(verdict.accepted)
        for reached in (ROOT, *verdict.accepted):
            for rank, node in enumerate(children.get(reached, ())[:MAX_SIBLINGS]):
                self._offered[rank] += 1
                if node in accepted:
                    self._accepted[rank] += 1
                    break


def tree_shape(num_nodes: int, probs: FloatArray) -> tuple[list[int], list[float]]:
    """The parents of the most likely tree of this size, level by level, and the survival of its nodes.

    `probs` are the probabilities that the sibling of each rank is the accepted one. A node is given by the
    ranks on its path.
    """
    chosen: dict[tuple[int, ...], float] = {}
    frontier: list[tuple[float, tuple[int, ...]]] = [(-float(probs[0]), (0,))]
    while frontier and len(chosen) < num_nodes:
        negative, ranks = heapq.heappop(frontier)
        chosen[ranks] = -negative
        above, rank = chosen.get(ranks[:-1], 1.0), ranks[-1] + 1
        if rank < len(probs):
            heapq.heappush(frontier, (-above * float(probs[rank]), (*ranks[:-1], rank)))
        heapq.heappush(frontier, (negative * float(probs[0]), (*ranks, 0)))
    order = sorted(chosen, key=lambda ranks: (len(ranks), ranks))
    index = {ranks: node for node, ranks in enumerate(order)}
    return [index.get(ranks[:-1], ROOT) for ranks in order], [chosen[ranks] for ranks in order]


class SampledTree:
    """A tree of a given shape whose nodes are sampled level by level."""

    def __init__(self, parents: Sequence[int], survival: Sequence[float], rng: np.random.Generator) -> None:
        self._rng = rng
        self._shape_children: dict[int, list[int]] = {}
        for node, parent in enumerate(parents):
            self._shape_children.setdefault(parent, []).append(node)
        self._survival = survival
        self._token_of: dict[int, int] = {}
        self._parent_of = dict(enumerate(parents))
        self._q: dict[int, torch.Tensor] = {}
        self._rows: dict[int, int] = {ROOT: COMMITTED}
        self.frontier: list[int] = [ROOT] if parents else []

    def grow(self, q: torch.Tensor) -> None:
        """Sample the children of the frontier, given its distributions, and move the frontier below it.

        A distribution with fewer possible tokens than the shape has children gets as many as it has tokens.
        """
        wanted = np.array([len(self._shape_children[node]) for node in self.frontier])
        numbers = np.minimum(wanted, (q > 0).sum(dim=-1).numpy(force=True))
        sampled = sample_without_replacement(q, numbers, self._rng)
        new: list[int] = []
        for row, node in enumerate(self.frontier):
            self._q[node] = q[row]
            children = self._shape_children[node][: numbers[row]]
            self._token_of |= zip(children, sampled[row, : numbers[row]].tolist(), strict=True)
            new += children
        self.frontier = [node for node in new if node in self._shape_children]

    def path(self, node: int) -> list[int]:
        """The tokens from the root to a node, including its own; none for the root."""
        return tokens_above(node, self._token_of, self._parent_of)

    def next_rows(self) -> tuple[list[int], list[int]]:
        """Tokens of the frontier, and the rows of their parents."""
        parents = [self._rows[self._parent_of[node]] for node in self.frontier]
        for node in self.frontier:
            self._rows[node] = len(self._rows) - 1
        return [self._token_of[node] for node in self.frontier], parents

    def draft(self, source: str) -> Draft:
        """The sampled nodes, each with its q."""
        nodes = sorted(self._token_of)
        index = {ROOT: ROOT} | {node: i for i, node in enumerate(nodes)}
        return Draft(
            tokens=np.array([self._token_of[node] for node in nodes], dtype=np.int64),
            parents=np.array([index[self._parent_of[node]] for node in nodes], dtype=np.int64),
            sampled=np.ones(len(nodes), dtype=bool),
            q={index[node]: Proposal(q, replacement=False) for node, q in self._q.items()},
            source=(source,) * len(nodes),
            survival=np.array([self._survival[node] for node in nodes], dtype=np.float32),
        )


def sample_without_replacement(q: torch.Tensor, numbers: IntArray, rng: np.random.Generator) -> IntArray:
    """[rows, largest number]: distinct tokens of each row, in the order in which they were sampled.

    Entries beyond a row's number are -1.
    """
    left = q.clone()
    sampled = np.full((len(q), int(numbers.max(initial=0))), -1)
    for rank in range(sampled.shape[1]):
        rows = np.flatnonzero(numbers > rank)
        tokens = sample_inverse_cdf(left[rows], rng.random(len(rows)))
        sampled[rows, rank] = tokens
        left[rows, tokens] = 0.0
    return sampled
