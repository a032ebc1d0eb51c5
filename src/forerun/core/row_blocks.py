"""Blocks of rows: the numbers of rows with which a layer computes a row always with the same bits.

Kernels choose the order of their sums by the shape of their inputs, so a row can be rounded differently alone
and among others. They branch on shapes, never on values. So a layer whose outputs for random rows have the
same bits in blocks of two sizes does the same operations in the same order in both, for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from forerun.core.tensors import Tensor, torch

REFERENCE_ROWS: Final = 16
"""The block size with which all others must agree, a constant so that all processes agree on every bit. A
tile of AMX has 16 rows.
"""

_MOVED_BY: Final = 5
"""Rows are moved by this many places, into other positions and beside other rows."""


def split_into_blocks(num_rows: int, sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The first row, the end and the size of every block: the largest size, then the smallest sufficient."""
    largest = max(sizes)
    for first in range(0, num_rows, largest):
        end = min(first + largest, num_rows)
        yield first, end, min(size for size in sizes if size >= end - first)


def sizes_with_equal_rows(
    layer: Callable[[Tensor], Tensor], rows: Tensor, sizes: Sequence[int]
) -> tuple[int, ...]:
    """Those of `sizes` in which a layer computes rows as in blocks of the first size.

    Empty if the first size is none of them: then rows depend on their position, or on the rows beside them.
    The number of `rows` is a multiple of the first size and at least the largest.
    """
    expected = torch.cat([layer(block) for block in torch.split(rows, sizes[0])]).roll(_MOVED_BY, 0)
    moved = rows.roll(_MOVED_BY, 0)
    equal = tuple(size for size in sizes if torch.equal(layer(moved[:size]), expected[:size]))
    return equal if sizes[0] in equal else ()


def cancelling_product(
    num_rows: int, num_inputs: int, num_outputs: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Weights of a linear layer, and rows for which its exact outputs are zero.

    Outputs are the rounding errors of the sums, which another order changes even if they are rounded to
    bfloat16.
    """
    generator = torch.Generator().manual_seed(0)
    half = num_inputs // 2
    order = torch.randperm(2 * half, generator=generator)
    weights = torch.zeros(num_outputs, num_inputs, dtype=dtype)
    rows = torch.zeros(num_rows, num_inputs, dtype=dtype)
    some = torch.randn(num_outputs, half, generator=generator).to(dtype)
    values = torch.randn(num_rows, half, generator=generator).to(dtype)
    weights[:, order] = torch.cat([some, some], 1)
    rows[:, order] = torch.cat([values, -values], 1)
    return weights, rows
