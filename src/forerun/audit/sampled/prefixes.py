"""How often each beginning of an answer was said: the law of the first tokens, as far as samples show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forerun.servers.endpoint import Token


class PrefixCounts:
    """Counts of the first `length` tokens of answers; one that ended earlier counts as it is."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.num = 0
        self.counts: Counter[tuple[Token, ...]] = Counter()

    def hear(self, tokens: Sequence[Token]) -> None:
        """One more answer."""
        self.num += 1
        self.counts[tuple(tokens[: self.length])] += 1
