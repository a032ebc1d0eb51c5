"""Small models to enumerate: targets, drafts and tree shapes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Prefix: TypeAlias = tuple[int, ...]
ExactDistribution: TypeAlias = tuple[Fraction, ...]


@dataclass(eq=False)
class ToyModel:
    """A target p and a draft q over a tiny vocabulary; both depend on the whole prefix.

    Distributions are generated on demand from the seed. `flavour` selects how they relate: generic, sparse
    (many zeros), equal (q = p), or greedy (p is a point mass).
    """

    vocab_size: int
    seed: int
    flavour: str = "generic"
    _tables: dict[tuple[str, Prefix], ExactDistribution] = field(default_factory=dict)

    def p(self, prefix: Prefix) -> ExactDistribution:
        """The target's distribution after this prefix."""
        p = self._table("p", prefix)
        return point_mass(p) if self.flavour == "greedy" else p

    def q(self, prefix: Prefix, model: int = 0) -> ExactDistribution:
        """A draft model's distribution after this prefix; strictly positive unless the flavour is sparse.

        With the flavour `equal`, that of the first draft model is the target's.
        """
        if self.flavour == "equal" and not model:
            return self.p(prefix)
        return self._table(f"q{model or ''}", prefix)

    def p_row(self, prefix: Prefix) -> npt.NDArray[np.object_]:
        """The target's distribution as an array."""
        return as_row(self.p(prefix))

    def _table(self, which: str, prefix: Prefix) -> ExactDistribution:
        key = (which, prefix)
        if key not in self._tables:
            rng = random.Random(f"{self.seed} {which} {prefix}")  # noqa: S311
            lowest = int(which != "p" or self.flavour == "equal")
            while sum(weights := [rng.randint(lowest, 5) for _ in range(self.vocab_size)]) == 0:
                pass
            if self.flavour == "sparse":
                weights = [w if rng.random() < 0.6 else 0 for w in weights]
                weights[rng.randrange(self.vocab_size)] += 1
            self._tables[key] = tuple(Fraction(w, sum(weights)) for w in weights)
        return self._tables[key]


def point_mass(distribution: ExactDistribution) -> ExactDistribution:
    """A point mass on the first most likely token."""
    best = distribution.index(max(distribution))
    return tuple(Fraction(int(x == best)) for x in range(len(distribution)))


def as_row(distribution: ExactDistribution) -> npt.NDArray[np.object_]:
    """A distribution as the array type that `core` takes."""
    row = np.empty(len(distribution), dtype=object)
    row[:] = distribution
    return row


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The shape of a draft: its parents, which nodes are sampled, and whether with replacement.

    `models` are the draft models that the nodes are sampled from; by default all from the first.
    """

    name: str
    parents: tuple[int, ...]
    sampled: tuple[bool, ...]
    replacement: bool = True
    models: tuple[int, ...] = ()

    def model(self, node: int) -> int:
        """The draft model of a node."""
        return self.models[node] if self.models else 0

    @classmethod
    def tree(
        cls, name: str, parents: tuple[int, ...], chosen: tuple[int, ...] = (), *, replacement: bool = True
    ) -> TreeShape:
        """A tree in which all nodes except the chosen ones are sampled."""
        return cls(name, parents, tuple(i not in chosen for i in range(len(parents))), replacement)


CHAINS = tuple(TreeShape.tree(f"chain of {n}", tuple(range(-1, n - 1))) for n in (1, 2, 3))
ONE_CHOSEN = TreeShape.tree("one chosen draft token", (-1,), (0,))
CHOSEN_CHAINS = (
    TreeShape.tree("chosen chain of 3", (-1, 0, 1), (0, 1, 2)),
    TreeShape.tree("chain, chosen in the middle", (-1, 0, 1), (1,)),
)
FORKS = ((-1, -1), (-1, -1, 0), (-1, -1, -1))
BUSHES = ((-1, -1, 0, 1), (-1, -1, 0, 0, 1, 1))


def trees(*, replacement: bool) -> tuple[TreeShape, ...]:
    """Trees of up to six sampled nodes."""
    how = "with" if replacement else "without"
    return tuple(
        TreeShape.tree(f"tree of {len(parents)} {how} replacement", parents, replacement=replacement)
        for parents in (*FORKS, *BUSHES)
    )


def several_models(
    parents: tuple[int, ...], models: tuple[int, ...], *, replacement: bool = True
) -> TreeShape:
    """A tree with nodes of several draft models."""
    name = f"tree of {len(parents)} from {len(set(models))} draft models"
    return TreeShape(name, parents, (True,) * len(parents), replacement, models)


SEVERAL_MODELS = (
    several_models((-1, -1), (0, 1)),
    several_models((-1, -1, 0, 1), (0, 1, 0, 1)),
    several_models((-1, -1, -1), (0, 1, 2)),
    several_models((-1, -1, -1, 1), (0, 1, 0, 1), replacement=False),
    several_models((-1, 0, -1, 2, 0, 2), (0, 0, 1, 1, 0, 1), replacement=False),
    TreeShape("two draft models and a chosen token", (-1, -1, -1), (True, True, False), models=(0, 1, 0)),
)
"""Siblings with different q: SpecInfer's trees, and iterative rejection sampling (Stratos, section 2)."""

MIXED_TREES = (
    TreeShape.tree("chosen then sampled", (-1, -1), (0,)),
    TreeShape.tree("sampled then chosen", (-1, -1), (1,)),
    TreeShape.tree("sampled, chosen, sampled", (-1, -1, -1, 0), (1,)),
    TreeShape.tree("mixed without replacement", (-1, -1, -1, 0, 0), (1,), replacement=False),
    TreeShape.tree("chosen tree", (-1, -1, 0, 0, 1, 2), (0, 1, 2, 3, 4, 5)),
)
