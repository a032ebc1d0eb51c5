"""Drafters of other engines, reimplemented as baselines for comparison."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.core.jit import compiled
from forerun.types import Draft, IntArray, RequestView, Verdict


class VllmNgram:
    """vLLM's n-gram rule: the earliest match of the last 4, 3, 2 or 1 tokens, and the K tokens after it."""

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One chain per view, as long as its budget where the text allows."""
        drafts = []
        for view, budget in zip(views, budgets, strict=True):
            text = np.array(view.tokens[:], dtype=np.int64)
            start = end_of_earliest_match(text, 4, 1)
            drafts.append(Draft.chain(text[start : start + budget], source="vllm-ngram"))
        return drafts

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Does nothing."""

    def forget(self, id: str) -> None:  # noqa: A002
        """Does nothing."""


@compiled
def end_of_earliest_match(text: IntArray, longest: int, shortest: int) -> int:
    """Position after the earliest match of the longest suffix that has one, or the length of the text."""
    num = text.size
    for length in range(min(longest, num - 1), shortest - 1, -1):
        for start in range(num - length):
            match = 0
            while match < length and text[start + match] == text[num - length + match]:
                match += 1
            if match == length:
                return start + length
    return num
