"""The draft tree of a draft model: each level extends the most likely nodes of the level above."""

from __future__ import annotations

import numpy as np

from forerun.core.tensors import torch
from forerun.core.token_tree import tokens_above
from forerun.models.input_rows import COMMITTED
from forerun.types import ROOT, Draft


class BeamTree:
    """A tree that grows from its most likely nodes while new nodes can enter the best `budget` nodes."""

    def __init__(self, branches: int, budget: int) -> None:
        self.branches = branches
        self.budget = budget
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.survival: list[float] = []
        self.frontier: list[int] = [ROOT]
        self._levels = -(-budget // branches)
        self._rows: dict[int, int] = {ROOT: COMMITTED}

    def grow(self, q: torch.Tensor) -> None:
        """Add the children of the frontier, given its distributions, and move the frontier to the best of
        them.
        """
        chosen_q, tokens = (each.tolist() for each in q.topk(min(self.branches, q.shape[1]), dim=-1))
        first = len(self.tokens)
        for row, node in enumerate(self.frontier):
            parent_survival = 1.0 if node == ROOT else self.survival[node]
            for probability, token in zip(chosen_q[row], tokens[row], strict=True):
                self.tokens.append(token)
                self.parents.append(node)
                self.survival.append(parent_survival * probability)
        new = sorted(range(first, len(self.tokens)), key=lambda node: -self.survival[node])
        self._levels -= 1
        max_frontier = self.budget - len(self._rows) if self._levels else 0
        self.frontier = [
            node
            for node in new[: min(self.branches, max_frontier)]
            if self.survival[node] > self._min_survival()
        ]

    def _min_survival(self) -> float:
        """Survival that a new node must exceed to enter the best nodes."""
        if len(self.tokens) < self.budget:
            return 0.0
        return sorted(self.survival, reverse=True)[self.budget - 1]

    def path(self, node: int) -> list[int]:
        """The tokens from the root to a node, including its own; none for the root."""
        return tokens_above(node, self.tokens, self.parents)

    def next_rows(self) -> tuple[list[int], list[int]]:
        """Tokens of the frontier, and the rows of their parents."""
        parents = [self._rows[self.parents[node]] for node in self.frontier]
        for node in self.frontier:
            self._rows[node] = len(self._rows) - 1
        return [self.tokens[node] for node in self.frontier], parents

    def draft(self, source: str) -> Draft:
        """The best nodes. Parents are at least as likely as their children."""
        order = sorted(range(len(self.tokens)), key=lambda node: -self.survival[node])[: self.budget]
        new_index = {ROOT: ROOT} | {node: i for i, node in enumerate(order)}
        return Draft(
            tokens=np.array([self.tokens[node] for node in order], dtype=np.int64),
            parents=np.array([new_index[self.parents[node]] for node in order], dtype=np.int64),
            sampled=np.zeros(len(order), dtype=bool),
            source=(source,) * len(order),
            survival=np.array([self.survival[node] for node in order], dtype=np.float32),
        )
