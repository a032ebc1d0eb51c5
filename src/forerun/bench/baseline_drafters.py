"""Drafters of other engines, restated to measure ours against. Not for use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.core.jit import compiled
from forerun.types import Draft, IntArray, RequestView, Verdict


class VllmNgram:
    """vLLM's n-gram rule: the earliest match of the last 4, 3, 2 or 1 tokens, and the K tokens behind it."""

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One chain per view, of exactly its budget where the text is long enough."""
        drafts = []
        for view, budget in zip(views, budgets, strict=True):
            text = np.array(view.tokens[:], dtype=np.int64)
            behind = behind_earliest_match(text, 4, 1)
            drafts.append(Draft.chain(text[behind : behind + budget], source="vllm-ngram"))
        return drafts

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Nothing to learn."""

    def forget(self, id: str) -> None:  # noqa: A002
        """Nothing to forget."""


@compiled
def behind_earliest_match(text: IntArray, longest: int, shortest: int) -> int:
    """The place behind the earliest match of the longest end of a text that has one, or the text's end."""
    num = text.size
    for length in range(min(longest, num - 1), shortest - 1, -1):
        for start in range(num - length):
            match = 0
            while match < length and text[start + match] == text[num - length + match]:
                match += 1
            if match == length:
                return start + length
    return num
