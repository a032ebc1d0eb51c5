"""Recycled logits: the likeliest next tokens after contexts that the target model has computed.

Every row that the target verifies has logits, also behind rejected draft tokens. Their likeliest tokens are
kept for the row's last two tokens, and the latest row of a context replaces earlier ones (Token Recycling,
Luo et al. 2024, extended to two tokens).

The rows are a ring of fixed size. Two hash indexes lead to them, by the last token and by the last two, with
a few entries per bucket. A row that the ring reuses leaves both indexes, so that memory is bounded and no
lookup returns a row of another context.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import numpy as np

from forerun.core.jit import compiled
from forerun.drafters.context_hash import extend_hash
from forerun.drafters.matches import Ints
from forerun.drafters.successors import NUM_SUCCESSORS, ByteArray, write_successors
from forerun.types import Float32Array, IntArray, TopTokens

MAX_ROWS: Final = 8192
"""Contexts kept per request, or per salt if outputs are shared: 0.5 MB."""

NO_ROW: Final = -1
_WAYS: Final = 4
_SEED: Final = 0x5EED
"""Hash seed, the same in all processes, because tensor-parallel ranks must drop the same rows. Contexts that
collide cost each other rows, and no time.
"""

PREVIOUS, LAST = 0, 1
"""Columns of `contexts`."""

_PAIR, _TOKEN = 0, 1
"""The indexes: by the last two tokens, and by the last."""

RecycledArrays = tuple[Ints, Ints, ByteArray, Ints, IntArray]
"""Contexts, successors, codes, indexes and the number of rows written, as compiled functions take them."""


class RecycledLogits:
    """The likeliest next tokens of at most `max_rows` contexts of two tokens."""

    __slots__ = ("arrays",)

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        num_buckets = 1 << (max(max_rows // 2, 1) - 1).bit_length()
        # Zeros are not resident before they are written. An index entry is a row number plus one.
        self.arrays: RecycledArrays = (
            np.zeros((max_rows, 2), dtype=np.int32),
            np.zeros((max_rows, NUM_SUCCESSORS), dtype=np.int32),
            np.zeros((max_rows, NUM_SUCCESSORS), dtype=np.uint8),
            np.zeros((2, num_buckets, _WAYS), dtype=np.int32),
            np.zeros(1, dtype=np.int64),
        )

    def __len__(self) -> int:
        """Number of contexts."""
        contexts, *_, num_written = self.arrays
        return int(min(num_written[0], len(contexts)))

    @property
    def num_bytes(self) -> int:
        """Memory of a full table."""
        return sum(array.nbytes for array in self.arrays)

    def add(self, top_tokens: TopTokens) -> None:
        """Store rows; of equal contexts the last row counts."""
        store_rows(
            self.arrays,  # compiled functions accept only one array type
            np.ascontiguousarray(top_tokens.contexts, dtype=np.int32),
            np.ascontiguousarray(top_tokens.tokens, dtype=np.int32),
            np.ascontiguousarray(top_tokens.probs, dtype=np.float32),
        )


class RecycledStore:
    """One table per request, or if `shared` one per salt, of which the most recently used ones are kept.

    Successors recycled from one request may be proposed to another only if both have the same salt, as for
    `OutputStore`.
    """

    def __init__(self, *, shared: bool, max_salts: int = 64) -> None:
        self.shared = shared
        self.max_salts = max_salts
        self._by_salt: OrderedDict[str | None, RecycledLogits] = OrderedDict()

    def of(self, salt: str | None) -> RecycledLogits:
        """The table of a new request with this salt."""
        if not self.shared:
            return RecycledLogits()
        if salt not in self._by_salt:
            self._by_salt[salt] = RecycledLogits()
        self._by_salt.move_to_end(salt)
        if len(self._by_salt) > self.max_salts:
            self._by_salt.popitem(last=False)
        return self._by_salt[salt]


@compiled
def store_rows(arrays: RecycledArrays, new_contexts: Ints, tokens: Ints, probs: Float32Array) -> None:
    """Store rows in order."""
    contexts, successors, codes, indexes, num_written = arrays
    for i in range(len(new_contexts)):
        previous, last = new_contexts[i, PREVIOUS], new_contexts[i, LAST]
        row = find_pair(arrays, previous, last)
        if row == NO_ROW:
            row = num_written[0] % len(contexts)
            if num_written[0] >= len(contexts):
                _remove(indexes, row, contexts[row, PREVIOUS], contexts[row, LAST])
            num_written[0] += 1
            contexts[row, PREVIOUS], contexts[row, LAST] = previous, last
            _insert(arrays, _PAIR, previous, last, row)
        write_successors(tokens[i], probs[i], successors[row], codes[row])
        _insert(arrays, _TOKEN, previous, last, row)


@compiled
def find_pair(arrays: RecycledArrays, previous: int, last: int) -> int:
    """The row of the context that ends with these two tokens, or NO_ROW."""
    contexts, _, _, indexes, _ = arrays
    bucket = indexes[_PAIR, _bucket(indexes, _PAIR, previous, last)]
    for way in range(_WAYS):
        row = int(bucket[way]) - 1
        if row >= 0 and contexts[row, PREVIOUS] == previous and contexts[row, LAST] == last:
            return row
    return NO_ROW


@compiled
def find_token(arrays: RecycledArrays, last: int) -> int:
    """The latest row of a context that ends with this token, or NO_ROW."""
    contexts, _, _, indexes, _ = arrays
    bucket = indexes[_TOKEN, _bucket(indexes, _TOKEN, 0, last)]
    for way in range(_WAYS):
        row = int(bucket[way]) - 1
        if row >= 0 and contexts[row, LAST] == last:
            return row
    return NO_ROW


@compiled
def _bucket(indexes: Ints, which: int, previous: int, last: int) -> int:
    """The bucket of a context in an index."""
    key = extend_hash(np.uint64(_SEED), last)
    if which == _PAIR:
        key = extend_hash(key, previous)
    return int(np.int64(key & np.uint64(indexes.shape[1] - 1)))


@compiled
def _insert(arrays: RecycledArrays, which: int, previous: int, last: int, row: int) -> None:
    """Point an index to a row: in place of the same context, else in a free entry, else of the oldest row."""
    contexts, _, _, indexes, num_written = arrays
    bucket = indexes[which, _bucket(indexes, which, previous, last)]
    chosen, oldest = 0, -1
    for way in range(_WAYS):
        found = int(bucket[way]) - 1
        if found < 0:
            chosen = way
            break
        if contexts[found, LAST] == last and (which == _TOKEN or contexts[found, PREVIOUS] == previous):
            chosen = way
            break
        age = (num_written[0] - found) % len(contexts)
        if age > oldest:
            chosen, oldest = way, age
    bucket[chosen] = row + 1


@compiled
def _remove(indexes: Ints, row: int, previous: int, last: int) -> None:
    """Remove a row from the indexes that lead to it."""
    for which in range(2):
        bucket = indexes[which, _bucket(indexes, which, previous, last)]
        for way in range(_WAYS):
            if bucket[way] == row + 1:
                bucket[way] = 0
