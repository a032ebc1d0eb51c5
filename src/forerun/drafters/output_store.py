"""Outputs of earlier requests, isolated by salt.

Output of one request may be proposed to another only if both have the same salt, because accepted draft
tokens shorten latency and so leak information about the other text. Every salt has its own indexes, and no
lookup crosses them.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from forerun.drafters.context_index import ContextIndex
from forerun.drafters.matches import BREAK, Ints

_MIN_TOKENS_PER_SALT = 64
_END = np.array([BREAK], dtype=np.int32)


class OutputStore:
    """At most `capacity` tokens of earlier outputs, over all salts.

    Each salt has a young and an old generation. A full young generation replaces the old one, which is
    dropped as a whole, so eviction takes constant time. When the store is full, the least recently used salt
    is evicted first. A salt counts as at least `_MIN_TOKENS_PER_SALT` tokens.
    """

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.capacity = capacity
        self._generations: OrderedDict[str | None, list[ContextIndex]] = OrderedDict()
        self._num_tokens = 0

    def __len__(self) -> int:
        """Number of stored tokens, separators included."""
        return self._num_tokens

    def indexes(self, salt: str | None) -> list[ContextIndex]:
        """Indexes of this salt only, young generation first."""
        generations = self._generations.get(salt)
        if generations is None:
            return []
        self._generations.move_to_end(salt)
        return generations

    def add(self, salt: str | None, output: Ints) -> None:
        """Store an output, or as many of its last tokens as half the capacity holds."""
        if not len(output):
            return
        half = self.capacity // 2
        output = output[-(half - 1) :]
        generations = self._generations.setdefault(salt, [])
        self._generations.move_to_end(salt)
        if not generations or len(generations[0]) + len(output) + 1 > half:
            generations.insert(0, ContextIndex(capacity=len(output) + 1, max_tokens=half))
            self._subtract_tokens(generations[2:])
            del generations[2:]
        generations[0].extend(np.concatenate([output, _END]))
        self._num_tokens += len(output) + 1
        while self._num_tokens > self.capacity or len(self._generations) > max(
            1, self.capacity // _MIN_TOKENS_PER_SALT
        ):
            self._evict()

    def _evict(self) -> None:
        """Drop the old generation of the least recently used salt."""
        salt = next(iter(self._generations))
        generations = self._generations[salt]
        self._subtract_tokens([generations.pop()])
        if not generations:
            del self._generations[salt]

    def _subtract_tokens(self, indexes: list[ContextIndex]) -> None:
        self._num_tokens -= sum(len(index) for index in indexes)
