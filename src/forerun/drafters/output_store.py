"""Outputs of earlier requests, kept apart by salt.

What one request was told may be guessed to another only where both carry the same salt: a guess that is
accepted quickly tells something about somebody else's text. Every salt has indexes of its own; nothing here
can look into another's.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from forerun.drafters.context_index import ContextIndex
from forerun.drafters.matches import BREAK, Ints

_LEAST = 64
_END = np.array([BREAK], dtype=np.int32)


class OutputStore:
    """At most `capacity` tokens of earlier outputs, over all salts.

    Each salt has a younger and an older half. A full younger half becomes the older one, which is dropped
    whole: forgetting costs nothing. Where many salts share the room, the one asked for longest ago goes
    first; a salt takes the room of `_LEAST` tokens even if it has said less.
    """

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.capacity = capacity
        self._halves: OrderedDict[str | None, list[ContextIndex]] = OrderedDict()
        self._num_tokens = 0

    def __len__(self) -> int:
        """How many tokens are kept, the marks between outputs included."""
        return self._num_tokens

    def indexes(self, salt: str | None) -> list[ContextIndex]:
        """The indexes of one salt, the younger first; of no other."""
        halves = self._halves.get(salt)
        if halves is None:
            return []
        self._halves.move_to_end(salt)
        return halves

    def add(self, salt: str | None, output: Ints) -> None:
        """Keep an output, or as much of its end as half the capacity holds."""
        if not len(output):
            return
        half = self.capacity // 2
        output = output[-(half - 1) :]
        halves = self._halves.setdefault(salt, [])
        self._halves.move_to_end(salt)
        if not halves or len(halves[0]) + len(output) + 1 > half:
            halves.insert(0, ContextIndex(room=len(output) + 1, most=half))
            self._drop(halves[2:])
            del halves[2:]
        halves[0].extend(np.concatenate([output, _END]))
        self._num_tokens += len(output) + 1
        while self._num_tokens > self.capacity or len(self._halves) > max(1, self.capacity // _LEAST):
            self._make_room()

    def _make_room(self) -> None:
        """Drop the older half of the salt asked for longest ago."""
        salt = next(iter(self._halves))
        halves = self._halves[salt]
        self._drop([halves.pop()])
        if not halves:
            del self._halves[salt]

    def _drop(self, indexes: list[ContextIndex]) -> None:
        self._num_tokens -= sum(len(index) for index in indexes)
