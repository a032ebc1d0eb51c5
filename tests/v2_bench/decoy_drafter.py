"""A drafter whose trees are mostly accepted on a side path, and not on their longest path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.drafters.suffix import SuffixDrafter
from forerun.types import Draft, RequestView, Verdict

NUM_DECOYS = 2
"""Chains beside the one that was looked up. They are longer, and their tokens differ from it: those of the
first one from the root on, those of the second one from the second token on.
"""
SOURCE = "v2_bench.decoy_drafter:DecoyDrafter"


class DecoyDrafter:
    """Looks up a chain and puts longer chains of wrong tokens beside it."""

    def __init__(self) -> None:
        self.suffix = SuffixDrafter(chain=True)

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """The chain that was looked up, as a branch of a tree."""
        lengths = [max(1, (budget - NUM_DECOYS) // (NUM_DECOYS + 1)) for budget in budgets]
        drafts = self.suffix.propose(views, lengths)
        return [with_decoys(draft, budget) for draft, budget in zip(drafts, budgets, strict=True)]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        """Learns nothing: the draft is not that of the lookup."""

    def forget(self, id: str) -> None:
        """Forget a request."""
        self.suffix.forget(id)


def with_decoys(draft: Draft, budget: int) -> Draft:
    """A chain with decoys beside it, as many as fit into the budget."""
    chain: list[int] = draft.tokens.tolist()
    tokens, parents = [*chain], [*range(-1, len(chain) - 1)]
    for number in range(NUM_DECOYS):
        first = min(number, len(chain) - 1)
        if not chain or len(tokens) + len(chain) + 1 - first > budget:
            break
        for depth in range(first, len(chain) + 1):
            parents.append(first - 1 if depth == first else len(tokens) - 1)
            tokens.append(4 + (chain[min(depth, len(chain) - 1)] + 1 + number) % 90)
    return Draft(
        np.array(tokens, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        np.zeros(len(tokens), dtype=bool),
        source=(SOURCE,) * len(tokens),
        survival=np.full(len(tokens), 0.5, dtype=np.float32),
    )
