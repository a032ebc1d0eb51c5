"""Rows of many texts in one pass, each looking at its own text.

A pass is packed: the rows of all texts one after another, without padding, so that the model's matrices work
on wanted rows only. Attention alone has to keep texts apart. Texts with few rows are padded to a block and
attended to together; a text with many rows (a prompt being read) is a block of its own. Query heads that
share a key head become more rows of that head, so that no key is ever copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from forerun.errors import UnsupportedModel
from forerun.types import BoolArray, IntArray

NAME: Final = "forerun"

WIDE: Final = 64
"""Texts with more rows than this in a pass are attended to by themselves."""

_UNKNOWN: Final = ("softcap", "s_aux", "sinks", "position_bias")
"""What some models ask of an attention, and this one does not do."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One text's rows in a pass: behind `length` committed ones and some that are not.

    `visible[i, j]` says whether row i looks at uncommitted row j; a row's depth is how many it sees.
    """

    slot: int
    length: int
    visible: BoolArray

    @property
    def num_rows(self) -> int:
        """How many rows this pass adds."""
        return len(self.visible)

    @property
    def num_seen(self) -> int:
        """How many rows of the slot are in use, with those of this pass."""
        return self.length + int(self.visible.shape[1])

    @property
    def positions(self) -> IntArray:
        """Where each row stands in its text."""
        seen: IntArray = self.visible.sum(1)
        return self.length + seen - 1


@dataclass(slots=True, eq=False)
class AttentionBlock:
    """Texts that are attended to together: neighbouring slots, each padded to the same number of rows.

    Padding i of the block is row `rows[i]` of the pass, any row where there is none; row i of the block's
    own is padding `places[i]`; they are rows `own` of the pass. `alone` says that there is one text only, so
    that the block is the pass, `open` that nothing is hidden. `mask` is added to the scores.
    """

    slots: tuple[int, int]
    length: int
    width: int
    rows: torch.Tensor
    places: torch.Tensor
    own: torch.Tensor
    alone: bool
    open: bool
    mask: torch.Tensor
    _folded: dict[int, torch.Tensor] = field(default_factory=dict)

    def folded(self, groups: int) -> torch.Tensor | None:
        """The mask for so many query heads to a key head; None where every row sees all there is."""
        if self.open:
            return None
        if groups not in self._folded:
            num, _, width, length = self.mask.shape
            wide = self.mask[:, :, None].expand(num, 1, groups, width, length)
            self._folded[groups] = wide.reshape(num, 1, groups * width, length)
        return self._folded[groups]


def blocks_of(parts: Sequence[Segment], dtype: torch.dtype, device: torch.device) -> list[AttentionBlock]:
    """The blocks of a pass."""
    first_rows = np.cumsum([0, *(part.num_rows for part in parts)])
    return [_block(parts, some, first_rows, dtype, device) for some in _groups(parts)]


def _groups(parts: Sequence[Segment]) -> Iterator[list[int]]:
    narrow = [i for i, part in enumerate(parts) if part.num_rows <= WIDE]
    if narrow:
        yield narrow
    yield from ([i] for i, part in enumerate(parts) if part.num_rows > WIDE)


def _block(
    parts: Sequence[Segment],
    some: Sequence[int],
    first_rows: IntArray,
    dtype: torch.dtype,
    device: torch.device,
) -> AttentionBlock:
    first, last = min(parts[i].slot for i in some), max(parts[i].slot for i in some) + 1
    width = max(parts[i].num_rows for i in some)
    length = max(parts[i].num_seen for i in some)
    rows = np.zeros((last - first, width), dtype=np.int64)
    hidden = np.zeros((last - first, 1, width, length), dtype=bool)
    places, own = [], []
    for i in some:
        part, at = parts[i], parts[i].slot - first
        mine = np.arange(part.num_rows)
        rows[at, mine] = first_rows[i] + mine
        places.append(at * width + mine)
        own.append(first_rows[i] + mine)
        hidden[at, 0, mine, part.length : part.num_seen] = ~part.visible
        hidden[at, 0, mine, part.num_seen :] = True
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(torch.from_numpy(hidden), -torch.inf)
    return AttentionBlock(
        slots=(first, last),
        length=length,
        width=width,
        rows=torch.from_numpy(rows.ravel()).to(device),
        places=torch.from_numpy(np.concatenate(places)).to(device),
        own=torch.from_numpy(np.concatenate(own)).to(device),
        alone=len(parts) == 1,
        open=not hidden.any(),
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
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over the blocks of a pass; without any it is transformers' own.

    `query` is [1, heads, rows, size]; `key` and `value` are [slots, key heads, length, size], all slots from
    the first. Returns [1, rows, heads, size].
    """
    if blocks is None:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
        return out, None
    asked = [name for name in _UNKNOWN if others.get(name) is not None]
    if asked:
        raise UnsupportedModel(f"the model's attention asks for {', '.join(asked)}")
    if blocks[0].alone:
        return _attend_to(blocks[0], query, key, value, scaling).transpose(1, 2), None
    rows = query[0].transpose(0, 1)
    result = rows.new_empty(len(rows), rows.shape[1], value.shape[3])
    for block in blocks:
        padded = rows.index_select(0, block.rows).view(-1, block.width, *rows.shape[1:]).transpose(1, 2)
        answers = _attend_to(block, padded, key, value, scaling).transpose(1, 2).flatten(0, 1)
        result.index_copy_(0, block.own, answers.index_select(0, block.places))
    return result[None], None


def _attend_to(
    block: AttentionBlock, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Attention for the padded rows of one block, [slots, heads, width, size], and of that shape."""
    first, last = block.slots
    num, heads, width, _ = query.shape
    groups = heads // key.shape[1]
    answers = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(num, key.shape[1], groups * width, -1),
        key[first:last, :, : block.length],
        value[first:last, :, : block.length],
        attn_mask=block.folded(groups),
        scale=scaling,
    )
    return answers.view(num, heads, width, -1)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
