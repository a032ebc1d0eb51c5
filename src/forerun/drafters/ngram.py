"""The n-gram drafter: proposes the most frequent continuations.

It counts the request's own tokens and proposes the most frequent continuation of the longest known context,
then the next, and so on: a chain. It needs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from forerun.drafters.ngram_counts import NgramCounts, predict
from forerun.errors import ConfigurationError
from forerun.types import Draft, Proposal, RequestView, Verdict

NAME: Final = "ngram"


class NgramDrafter:
    """Drafts from frequency tables of order 2 to `order` over the last `max_tokens` tokens of a request.

    With `rng` and a `vocab_size`, draft tokens of sampled requests without a seed are sampled from the counts
    instead, each with its q. Such a chain is as long as the budget unless it reaches an unknown context.
    """

    def __init__(
        self,
        *,
        order: int = 5,
        max_tokens: int = 1 << 15,
        rng: np.random.Generator | None = None,
        vocab_size: int | None = None,
    ) -> None:
        if order < 2:
            raise ConfigurationError(f"order is {order}; expected at least 2, a context of one token")
        if max_tokens < 64:
            raise ConfigurationError(f"max_tokens is {max_tokens}; it must be at least 64")
        if rng is not None and (vocab_size is None or vocab_size < 1):
            raise ConfigurationError(
                f"sampling needs a vocab_size of at least 1, the length of q; got {vocab_size}"
            )
        self.order = order
        self.max_tokens = max_tokens
        self.rng = rng
        self.vocab_size = vocab_size or 0
        self._requests: dict[str, _NgramState] = {}

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One chain per view."""
        return [
            self._propose_one(view, budget) if budget > 0 else Draft.chain([])
            for view, budget in zip(views, budgets, strict=True)
        ]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Nothing to learn: the accepted tokens are counted in the next `propose`."""

    def forget(self, id: str) -> None:  # noqa: A002
        """Drop a request."""
        self._requests.pop(id, None)

    def _propose_one(self, view: RequestView, budget: int) -> Draft:
        request = self._catch_up(view)
        if self.rng is not None and view.sampling.unseeded:
            return self._sample(request, budget)
        return self._choose(request, budget)

    def _catch_up(self, view: RequestView) -> _NgramState:
        """State of a view's request, with all its tokens counted."""
        request = self._requests.get(view.id)
        if request is None or request.known > len(view.tokens):
            capacity = len(view.tokens) * 5 // 4 + 256
            request = self._requests[view.id] = _NgramState(
                NgramCounts(self.order, capacity, self.max_tokens)
            )
        new = np.array(view.tokens[request.known :], dtype=np.int32)
        request.counts.extend(new)
        request.known += len(new)
        return request

    def _choose(self, request: _NgramState, budget: int) -> Draft:
        """The most frequent continuation, repeatedly."""
        counts = request.counts
        tokens = np.empty(budget, dtype=np.int64)
        survival = np.empty(budget, dtype=np.float32)
        num = predict(counts.tokens, counts.keys, counts.cells, counts.counters, self.order, tokens, survival)
        return Draft.chain(tokens[:num], source=NAME, survival=survival[:num])

    def _sample(self, request: _NgramState, budget: int) -> Draft:
        """Continuations sampled in proportion to their counts.

        Only an unknown context ends a draft before its budget, and it does so before sampling there.
        """
        from forerun.core.tensors import torch  # noqa: PLC0415  (only sampled drafts need it)

        assert self.rng is not None
        context = request.counts.text[-self.order :]
        proposals: list[Proposal] = []
        tokens: list[int] = []
        for _ in range(budget):
            candidates, counts = request.counts.continuations(context)
            known = (candidates >= 0) & (candidates < self.vocab_size)
            candidates, counts = candidates[known], counts[known]
            if not len(candidates):
                break
            q = torch.zeros(self.vocab_size, dtype=torch.float32)
            q[torch.from_numpy(candidates)] = torch.from_numpy((counts / counts.sum()).astype(np.float32))
            token = int(
                candidates[np.searchsorted(np.cumsum(counts), self.rng.integers(counts.sum()), "right")]
            )
            tokens.append(token)
            proposals.append(Proposal(q))
            context = np.append(context[1:], np.int32(token))
        return Draft.chain(tokens, q=proposals, source=NAME)


class _NgramState:
    """State of a request: its counts, and the number of tokens counted."""

    __slots__ = ("counts", "known")

    def __init__(self, counts: NgramCounts) -> None:
        self.counts = counts
        self.known = 0
