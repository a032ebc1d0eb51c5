"""The rows of a forward pass, packed: the rows of all sequences one after another, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.models.attention import Segment
from forerun.models.input_rows import InputRows, logit_rows
from forerun.types import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Arrays with one entry per row: its token and position, and its place in the KV cache.

    `wanted` are the rows whose logits are requested.
    """

    segments: Sequence[Segment]
    tokens: IntArray
    positions: IntArray
    slots: IntArray
    cache_rows: IntArray
    wanted: IntArray

    @classmethod
    def of(cls, inputs: Sequence[InputRows], segments: Sequence[Segment]) -> PackedRows:
        """Pack inputs; each has its segment."""
        num_rows = [segment.num_rows for segment in segments]
        return cls(
            segments,
            tokens=np.concatenate([np.asarray(rows.tokens, dtype=np.int64) for rows in inputs]),
            positions=np.concatenate([segment.positions for segment in segments]),
            slots=np.repeat([segment.slot for segment in segments], num_rows),
            cache_rows=np.concatenate(
                [segment.num_visible - segment.num_rows + np.arange(segment.num_rows) for segment in segments]
            ),
            wanted=logit_rows(inputs),
        )

    def __len__(self) -> int:
        return len(self.tokens)
