"""The rows of a forward pass: tokens behind a sequence, as a chain or a tree, and the visibility of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from forerun.types import BoolArray, IntArray

COMMITTED: Final = -1
"""The parent of a row that directly follows the committed ones."""

NO_ROWS: Final[BoolArray] = np.zeros((0, 0), dtype=bool)
"""The visibility of a slot without uncommitted rows."""


@dataclass(frozen=True, slots=True, eq=False)
class InputRows:
    """Tokens to compute behind a sequence.

    `parents` are uncommitted rows of the slot, including these ones, or `COMMITTED`. Without parents the
    tokens are a chain behind the last row. The forward pass returns logits of the last `num_logits` tokens.
    """

    slot: int
    tokens: Sequence[int] | IntArray
    parents: IntArray | None = None
    num_logits: int = 1


def visibility(above: BoolArray, rows: InputRows) -> BoolArray:
    """[rows, uncommitted rows of the slot]: the ancestors of each row, including itself."""
    before, num = len(above), len(rows.tokens)
    if rows.parents is None and not before:
        return np.tri(num, dtype=bool)
    parents = np.arange(before - 1, before - 1 + num) if rows.parents is None else rows.parents
    visible = np.zeros((num, before + num), dtype=bool)
    for row, parent in enumerate(parents.tolist()):
        if parent >= before:
            visible[row] = visible[parent - before]
        elif parent != COMMITTED:
            visible[row, :before] = above[parent]
        visible[row, before + row] = True
    return visible


def extend_visibility(above: BoolArray, visible: BoolArray) -> BoolArray:
    """The ancestors of all uncommitted rows of a slot, including those of this forward pass."""
    if not len(above):
        return visible
    square = np.zeros((visible.shape[1],) * 2, dtype=bool)
    square[: len(above), : len(above)] = above
    square[len(above) :] = visible
    return square


def logit_rows(inputs: Sequence[InputRows]) -> IntArray:
    """The rows of a forward pass whose logits are requested."""
    ends = np.cumsum([len(rows.tokens) for rows in inputs])
    return np.concatenate(
        [np.arange(end - rows.num_logits, end) for end, rows in zip(ends, inputs, strict=True)]
    )
