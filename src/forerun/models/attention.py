"""Attention over the packed rows of many sequences, each attending to its own context.

A batch is packed: the rows of all sequences follow one another without padding, so that linear layers compute
only needed rows. Attention separates the sequences. Sequences with few rows are padded to one block and
attended to together; a sequence with many rows (a prefill) is a block of its own. Query heads that share a
key head become additional rows of that head, so that keys are never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from forerun.errors import UnsupportedModel
from forerun.types import BoolArray, IntArray

ATTENTION_NAME: Final = "forerun"

MAX_BATCHED_ROWS: Final = 64
"""Sequences with more rows than this in a forward pass are a block of their own."""

RowAttention: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float | None], torch.Tensor]
"""Attention of rows [rows, heads, size] over all cache rows of a layer, with a factor for the scores."""

_UNSUPPORTED: Final = ("softcap", "s_aux", "sinks", "position_bias")
"""Arguments of some models' attention that this one does not implement."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One sequence's rows in a forward pass, behind `length` committed rows and any uncommitted ones.

    `visible[i, j]`: row i attends to uncommitted row j. A row's depth is the number of these.
    """

    slot: int
    length: int
    visible: BoolArray

    @property
    def num_rows(self) -> int:
        """Rows that this forward pass adds."""
        return len(self.visible)

    @property
    def num_visible(self) -> int:
        """Rows of the slot in use, including those of this forward pass."""
        return self.length + int(self.visible.shape[1])

    @property
    def positions(self) -> IntArray:
        """The position id of each row."""
        depths: IntArray = self.visible.sum(1)
        return self.length + depths - 1


@dataclass(slots=True, eq=False)
class AttentionBlock:
    """Sequences attended to together: neighbouring slots, each padded to `width` rows.

    Padded row i holds packed row `padded_rows[i]`, an arbitrary one where the sequence has fewer rows. The
    block's own rows are the packed rows `packed_rows`, at the padded rows `padded_positions`.
    `is_whole_batch`: the batch is this one sequence. `unmasked`: every row attends to everything. `mask` is
    added to the scores.
    """

    slots: tuple[int, int]
    length: int
    width: int
    padded_rows: torch.Tensor
    padded_positions: torch.Tensor
    packed_rows: torch.Tensor
    is_whole_batch: bool
    unmasked: bool
    mask: torch.Tensor
    _grouped_masks: dict[int, torch.Tensor] = field(default_factory=dict)

    def grouped_mask(self, groups: int) -> torch.Tensor | None:
        """The mask for `groups` query heads per key head; None for an unmasked block."""
        if self.unmasked:
            return None
        if groups not in self._grouped_masks:
            num, _, width, length = self.mask.shape
            grouped = self.mask[:, :, None].expand(num, 1, groups, width, length)
            self._grouped_masks[groups] = grouped.reshape(num, 1, groups * width, length)
        return self._grouped_masks[groups]


def make_blocks(
    segments: Sequence[Segment], dtype: torch.dtype, device: torch.device
) -> list[AttentionBlock]:
    """The blocks of a forward pass."""
    first_rows = np.cumsum([0, *(segment.num_rows for segment in segments)])
    return [_block(segments, members, first_rows, dtype, device) for members in _groups(segments)]


def _groups(segments: Sequence[Segment]) -> Iterator[list[int]]:
    small = [i for i, segment in enumerate(segments) if segment.num_rows <= MAX_BATCHED_ROWS]
    if small:
        yield small
    yield from ([i] for i, segment in enumerate(segments) if segment.num_rows > MAX_BATCHED_ROWS)


def _block(
    segments: Sequence[Segment],
    members: Sequence[int],
    first_rows: IntArray,
    dtype: torch.dtype,
    device: torch.device,
) -> AttentionBlock:
    first, last = min(segments[i].slot for i in members), max(segments[i].slot for i in members) + 1
    width = max(segments[i].num_rows for i in members)
    length = max(segments[i].num_visible for i in members)
    rows = np.zeros((last - first, width), dtype=np.int64)
    masked = np.zeros((last - first, 1, width, length), dtype=bool)
    positions, packed = [], []
    for i in members:
        segment, index = segments[i], segments[i].slot - first
        row = np.arange(segment.num_rows)
        rows[index, row] = first_rows[i] + row
        positions.append(index * width + row)
        packed.append(first_rows[i] + row)
        masked[index, 0, row, segment.length : segment.num_visible] = ~segment.visible
        masked[index, 0, row, segment.num_visible :] = True
    mask = torch.zeros(masked.shape, dtype=dtype).masked_fill_(torch.from_numpy(masked), -torch.inf)
    return AttentionBlock(
        slots=(first, last),
        length=length,
        width=width,
        padded_rows=torch.from_numpy(rows.ravel()).to(device),
        padded_positions=torch.from_numpy(np.concatenate(positions)).to(device),
        packed_rows=torch.from_numpy(np.concatenate(packed)).to(device),
        is_whole_batch=len(segments) == 1,
        unmasked=not masked.any(),
        mask=mask.to(device),
    )


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    blocks: Sequence[AttentionBlock] | None = None,
    attend_rows: RowAttention | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over the blocks of a forward pass, or row by row; without either, transformers' own.

    `query` is [1, heads, rows, size]; `key` and `value` are [slots, key heads, length, size], for all slots.
    Returns [1, rows, heads, size].
    """
    unsupported = [name for name in _UNSUPPORTED if others.get(name) is not None]
    if unsupported and (blocks is not None or attend_rows is not None):
        raise UnsupportedModel(f"the model's attention needs {', '.join(unsupported)}: not supported")
    if attend_rows is not None:
        return attend_rows(query[0].transpose(0, 1), _by_row(key), _by_row(value), scaling)[None], None
    if blocks is None:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
        return out, None
    if blocks[0].is_whole_batch:
        return _attend_block(blocks[0], query, key, value, scaling).transpose(1, 2), None
    rows = query[0].transpose(0, 1)
    result = rows.new_empty(len(rows), rows.shape[1], value.shape[3])
    for block in blocks:
        padded = (
            rows.index_select(0, block.padded_rows).view(-1, block.width, *rows.shape[1:]).transpose(1, 2)
        )
        outputs = _attend_block(block, padded, key, value, scaling).transpose(1, 2).flatten(0, 1)
        result.index_copy_(0, block.packed_rows, outputs.index_select(0, block.padded_positions))
    return result[None], None


def _attend_block(
    block: AttentionBlock, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Attention for the padded rows of one block; input and output are [slots, heads, width, size]."""
    first, last = block.slots
    num, heads, width, _ = query.shape
    groups = heads // key.shape[1]
    outputs = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(num, key.shape[1], groups * width, -1),
        key[first:last, :, : block.length],
        value[first:last, :, : block.length],
        attn_mask=block.grouped_mask(groups),
        scale=scaling,
    )
    return outputs.view(num, heads, width, -1)


def _by_row(slots: torch.Tensor) -> torch.Tensor:
    """All cache rows [cache rows, key heads, size] of a layer, without a copy."""
    return slots.transpose(1, 2).flatten(0, 1)


AttentionInterface.register(ATTENTION_NAME, attend)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
