"""The n-gram drafter: which token followed this context most often?

Counts the request's own tokens and guesses the most frequent continuation of the longest context it knows,
then the next, and so on: a chain. It needs no model and knows none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from forerun.drafters.match_tree import EVIDENCE, RECORD
from forerun.drafters.ngram_counts import NgramCounts, predict
from forerun.errors import ConfigurationError
from forerun.types import Draft, Proposal, RequestView, Verdict

NAME: Final = "ngram"
_PRIOR: Final = (0.5, 2.0)


class NgramDrafter:
    """Guesses from frequency tables of order 2 to `order` over the last `most_tokens` tokens of a request.

    With `draw` and a `vocab_size`, guesses are drawn from the counts instead, and each comes with the q it
    was drawn from; as many are drawn as the budget says, unless a context comes up that nothing followed.
    """

    def __init__(
        self,
        *,
        order: int = 5,
        most_tokens: int = 1 << 15,
        draw: np.random.Generator | None = None,
        vocab_size: int | None = None,
    ) -> None:
        if order < 2:
            raise ConfigurationError(f"order is {order}; a context of one token needs order 2")
        if most_tokens < 64:
            raise ConfigurationError(f"most_tokens is {most_tokens}; it must be at least 64")
        if draw is not None and (vocab_size is None or vocab_size < 1):
            raise ConfigurationError("drawn guesses come with their q: say its vocab_size")
        self.order = order
        self.most_tokens = most_tokens
        self.draw = draw
        self.vocab_size = vocab_size or 0
        self._requests: dict[str, _Request] = {}

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One chain per view."""
        guess = self._choose if self.draw is None else self._draw
        return [
            guess(self._catch_up(view), budget) if budget > 0 else Draft.chain([])
            for view, budget in zip(views, budgets, strict=True)
        ]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Hear whether the next token was guessed."""
        request = self._requests.get(id)
        if request is not None and len(draft):
            request.tries = min(request.tries + 1, 20)
            request.record += (bool(verdict.accepted) - request.record) / request.tries

    def forget(self, id: str) -> None:  # noqa: A002
        """Drop a request."""
        self._requests.pop(id, None)

    def _catch_up(self, view: RequestView) -> _Request:
        """The request of a view, with all its tokens counted."""
        request = self._requests.get(view.id)
        if request is None or request.known > len(view.tokens):
            room = len(view.tokens) * 5 // 4 + 256
            request = self._requests[view.id] = _Request(NgramCounts(self.order, room, self.most_tokens))
        new = np.array(view.tokens[request.known :], dtype=np.int32)
        request.counts.extend(new)
        request.known += len(new)
        return request

    def _choose(self, request: _Request, budget: int) -> Draft:
        """The most frequent continuation, again and again."""
        counts = request.counts
        tokens = np.empty(budget, dtype=np.int64)
        evidence = np.empty((budget, len(EVIDENCE)), dtype=np.float32)
        evidence[:, RECORD] = request.record
        num = predict(counts.tokens, counts.keys, counts.cells, counts.meta, self.order, tokens, evidence)
        return Draft.chain(tokens[:num], source=NAME, evidence=evidence[:num])

    def _draw(self, request: _Request, budget: int) -> Draft:
        """Continuations drawn by their counts.

        Only an unknown context ends a draft before its budget does, and before anything is drawn there.
        """
        from forerun.core.tensors import torch  # noqa: PLC0415  (only sampled drafts need it)

        assert self.draw is not None
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
                candidates[np.searchsorted(np.cumsum(counts), self.draw.integers(counts.sum()), "right")]
            )
            tokens.append(token)
            proposals.append(Proposal(q))
            context = np.append(context[1:], np.int32(token))
        return Draft.chain(tokens, q=proposals, source=NAME)


class _Request:
    """What is kept of one request: its counts, and how well they did."""

    __slots__ = ("counts", "known", "record", "tries")

    def __init__(self, counts: NgramCounts) -> None:
        self.counts = counts
        self.known = 0
        self.record, self.tries = _PRIOR
