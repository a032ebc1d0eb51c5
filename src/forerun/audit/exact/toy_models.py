"""Small worlds to enumerate: targets, drafts and the trees that are guessed in them."""

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
    """A target p and a draft q over a tiny vocabulary; both depend on every token before.

    Tables are made on demand from the seed. `flavour` chooses how they relate: anything goes, many zeros,
    q equal to p, or a target that is greedy.
    """

    vocab_size: int
    seed: int
    flavour: str = "generic"
    _tables: dict[tuple[str, Prefix], ExactDistribution] = field(default_factory=dict)

    def p(self, prefix: Prefix) -> ExactDistribution:
        """What the target says after this prefix."""
        law = self._table("p", prefix)
        return point_mass(law) if self.flavour == "greedy" else law

    def q(self, prefix: Prefix) -> ExactDistribution:
        """What the draft says after this prefix; without zeros, unless zeros are the flavour."""
        return self.p(prefix) if self.flavour == "equal" else self._table("q", prefix)

    def p_row(self, prefix: Prefix) -> npt.NDArray[np.object_]:
        """The target's law as an array."""
        return as_row(self.p(prefix))

    def _table(self, which: str, prefix: Prefix) -> ExactDistribution:
        key = (which, prefix)
        if key not in self._tables:
            dice = random.Random(f"{self.seed} {which} {prefix}")  # noqa: S311
            lowest = int(which == "q" or self.flavour == "equal")
            while sum(weights := [dice.randint(lowest, 5) for _ in range(self.vocab_size)]) == 0:
                pass
            if self.flavour == "sparse":
                weights = [w if dice.random() < 0.6 else 0 for w in weights]
                weights[dice.randrange(self.vocab_size)] += 1
            self._tables[key] = tuple(Fraction(w, sum(weights)) for w in weights)
        return self._tables[key]


def point_mass(law: ExactDistribution) -> ExactDistribution:
    """All on the first most likely token."""
    best = law.index(max(law))
    return tuple(Fraction(int(x == best)) for x in range(len(law)))


def as_row(law: ExactDistribution) -> npt.NDArray[np.object_]:
    """A law as the kind of array core takes."""
    row = np.empty(len(law), dtype=object)
    row[:] = law
    return row


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree to guess: its parents, which nodes are sampled, and whether with replacement."""

    name: str
    parents: tuple[int, ...]
    sampled: tuple[bool, ...]
    replacement: bool = True

    @classmethod
    def tree(
        cls, name: str, parents: tuple[int, ...], chosen: tuple[int, ...] = (), *, replacement: bool = True
    ) -> TreeShape:
        """A tree whose nodes are sampled but for the chosen ones."""
        return cls(name, parents, tuple(i not in chosen for i in range(len(parents))), replacement)


CHAINS = tuple(TreeShape.tree(f"chain of {n}", tuple(range(-1, n - 1))) for n in (1, 2, 3))
ONE_CHOSEN = TreeShape.tree("one chosen guess", (-1,), (0,))
CHOSEN_CHAINS = (
    TreeShape.tree("chosen chain of 3", (-1, 0, 1), (0, 1, 2)),
    TreeShape.tree("chain, chosen in the middle", (-1, 0, 1), (1,)),
)
FORKS = ((-1, -1), (-1, -1, 0), (-1, -1, -1))
BUSHES = ((-1, -1, 0, 1), (-1, -1, 0, 0, 1, 1))


def trees(*, replacement: bool) -> tuple[TreeShape, ...]:
    """Trees of sampled nodes, up to six of them."""
    how = "with" if replacement else "without"
    return tuple(
        TreeShape.tree(f"tree of {len(parents)} {how} replacement", parents, replacement=replacement)
        for parents in (*FORKS, *BUSHES)
    )


MIXED_TREES = (
    TreeShape.tree("chosen then sampled", (-1, -1), (0,)),
    TreeShape.tree("sampled then chosen", (-1, -1), (1,)),
    TreeShape.tree("sampled, chosen, sampled", (-1, -1, -1, 0), (1,)),
    TreeShape.tree("mixed without replacement", (-1, -1, -1, 0, 0), (1,), replacement=False),
    TreeShape.tree("chosen tree", (-1, -1, 0, 0, 1, 2), (0, 1, 2, 3, 4, 5)),
)
