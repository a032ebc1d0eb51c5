"""Empirical distribution of the first tokens of samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from forerun.servers.completions import Token

MAX_REPORTED: Final = 200
"""Maximum number of prefixes in a report, the most common first."""


class PrefixCounts:
    """Counts of the first `length` tokens of samples; a shorter sample counts as a whole."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.num_samples = 0
        self.counts: Counter[tuple[Token, ...]] = Counter()

    def add(self, tokens: Sequence[Token]) -> None:
        """Add one sample."""
        self.num_samples += 1
        self.counts[tuple(tokens[: self.length])] += 1
