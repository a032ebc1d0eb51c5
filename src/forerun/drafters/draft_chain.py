"""A chain of draft tokens of a draft model, as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from forerun.core.tensors import torch
from forerun.types import Draft, Proposal, RequestView


@dataclass(slots=True)
class DraftChain:
    """The tokens of a chain, the q of each, and its probability under that q.

    `before` are draft tokens between the last committed token and the chain.
    """

    before: Sequence[int] = ()
    tokens: list[int] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)

    @property
    def path(self) -> list[int]:
        """All draft tokens behind the last committed token."""
        return [*self.before, *self.tokens]

    def append(self, token: int, q: torch.Tensor) -> None:
        """Add a token that was drawn from q, or chosen by it."""
        self.tokens.append(token)
        self.proposals.append(Proposal(q))
        self.probs.append(float(q[token]))

    def first(self, num: int) -> DraftChain:
        """The first tokens as a chain of their own, once the tokens before it are committed."""
        return DraftChain((), self.tokens[:num], self.proposals[:num], self.probs[:num])

    def draft(self, view: RequestView, source: str) -> Draft:
        """The chain as a request's draft, with q if its tokens are sampled."""
        return Draft.chain(
            self.tokens,
            q=self.proposals if view.sampling.unseeded else (),
            source=source,
            survival=np.cumprod(self.probs, dtype=np.float32),
        )
