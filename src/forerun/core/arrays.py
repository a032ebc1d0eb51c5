"""The few operations that torch tensors and NumPy arrays of Fractions spell differently.

Everything else in `core` is written with operators that both have. Wide arrays ([rows, vocabulary]) stay
where the engine made them; narrow ones (a number per request) are NumPy on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from forerun.core.tensors import Tensor, torch
from forerun.errors import InvalidDistribution
from forerun.types import IntArray

VocabRows: TypeAlias = Any
"""[rows, vocabulary]: a float tensor, or a NumPy array of Fractions."""

PerRow: TypeAlias = Any
"""A number per row on the host: a NumPy array of float64 or of Fractions."""


_MOST_DOUBLINGS = 120
"""2 to this power is still a float32."""


_SMALL = 2.0**-20
"""Masses above this are near enough to 1."""


class RowSource(Protocol):
    """Rows on demand. A tensor is one; so is anything that computes only the rows it is asked for.

    It may also have `chances(rows, columns)`, where single entries are cheaper than whole rows, and
    `peek(rows)`, where rows are at hand that need no copy.
    """

    def __getitem__(self, rows: IntArray, /) -> VocabRows: ...


def on_cpu(wide: VocabRows) -> bool:
    """Whether compiled loops can run over these rows."""
    return isinstance(wide, Tensor) and wide.device.type == "cpu"


def copy_rows(source: Any, rows: IntArray) -> VocabRows:
    """A copy of these rows. `index_select` is some forty times faster than indexing with a NumPy array."""
    if isinstance(source, Tensor):
        return source.index_select(0, torch.from_numpy(rows).to(source.device))
    return source[rows]


def read_rows(wide: VocabRows, rows: IntArray) -> VocabRows:
    """These rows, to be read: a copy, or the whole itself where they are all of it, in order."""
    return wide if _are_all(rows, wide) else copy_rows(wide, rows)


def stack(rows: Any) -> VocabRows:
    """One wide array of separate rows; a wide array as it is."""
    if isinstance(rows, (Tensor, np.ndarray)):
        return rows
    if isinstance(rows[0], Tensor):
        return torch.stack(list(rows))
    return np.stack(list(rows))


def gather(rows: Sequence[Any], columns: Sequence[int]) -> list[Any]:
    """rows[i][columns[i]] of separate rows, as numbers on the host."""
    if rows and isinstance(rows[0], Tensor) and rows[0].device.type != "cpu":
        numbers: list[Any] = torch.stack([row[c] for row, c in zip(rows, columns, strict=True)]).tolist()
        return numbers
    tables = [row.numpy() if isinstance(row, Tensor) else row for row in rows]
    return [table[c] for table, c in zip(tables, columns, strict=True)]


def entries(wide: VocabRows, rows: IntArray, columns: IntArray) -> PerRow:
    """wide[rows[i], columns[i]] for every i."""
    if isinstance(wide, Tensor):
        at = torch.from_numpy(rows * wide.shape[1] + columns).to(wide.device)
        return wide.take(at).double().numpy(force=True)
    return wide[rows, columns]


def token_probs(source: Any, rows: IntArray, columns: IntArray) -> PerRow:
    """source[rows[i], columns[i]] for every i, without reading more than that where it knows how."""
    return (
        source.token_probs(rows, columns)
        if hasattr(source, "token_probs")
        else entries(source, rows, columns)
    )


def read_each_row(source: Any, rows: IntArray) -> list[Any]:
    """These rows one by one, to be read."""
    peeked: list[Any] = (
        source.read_only_rows(rows)
        if hasattr(source, "read_only_rows")
        else [source[row] for row in rows.tolist()]
    )
    return peeked


def overwrite_rows(wide: VocabRows, rows: IntArray, values: VocabRows) -> VocabRows:
    """The array with these rows overwritten, in place; or the values themselves, where they are all of it."""
    if _are_all(rows, wide):
        return values
    if isinstance(wide, Tensor):
        return wide.index_copy_(0, torch.from_numpy(rows).to(wide.device), values)
    wide[rows] = values
    return wide


def zero_entries(wide: VocabRows, rows: IntArray, columns: IntArray) -> None:
    """Set wide[rows[i], columns[i]] to zero for every i."""
    if isinstance(wide, Tensor) and len(rows):
        wide[torch.from_numpy(rows).to(wide.device), torch.from_numpy(columns).to(wide.device)] = 0
    elif len(rows):
        wide[rows, columns] = 0


def ones_like_rows(wide: VocabRows) -> PerRow:
    """A one per row, of the kind of number that goes with these rows."""
    return np.ones(len(wide), dtype=np.float64 if isinstance(wide, Tensor) else object)


def scale_rows(wide: VocabRows, factors: PerRow) -> VocabRows:
    """Each row times its own number."""
    return wide * _column(wide, factors)


def clamp_to_positive(wide: VocabRows) -> VocabRows:
    """max(x, 0), entry by entry, of an array nobody else holds."""
    if isinstance(wide, Tensor):
        return wide.clamp_min_(0)
    return wide * (wide > 0)


def row_sums(wide: VocabRows) -> PerRow:
    """The sum of each row."""
    if isinstance(wide, Tensor):
        return wide.sum(-1).double().numpy(force=True)
    return wide.sum(-1)


def row_argmax(wide: VocabRows) -> tuple[IntArray, PerRow]:
    """Each row's first largest entry: where, and how large."""
    if isinstance(wide, Tensor):
        top, where = wide.max(-1)
        return where.numpy(force=True), top.double().numpy(force=True)
    where = wide.argmax(-1)
    return where, entries(wide, np.arange(len(wide)), where)


def first_largest(wide: torch.Tensor, rows: IntArray) -> IntArray:
    """The first largest entry of these rows, which must be a number.

    On the CPU row by row with NumPy, whose argmax is vectorised and needs no copy of float32 rows.
    """
    if on_cpu(wide):
        some = (wide[row] for row in rows.tolist())
        where = np.array([row.to(torch.float32).numpy().argmax() for row in some], dtype=np.int64)
    else:
        where = copy_rows(wide, rows).argmax(-1).numpy(force=True)
    if not np.isfinite(entries(wide, rows, where)).all():
        raise InvalidDistribution("the largest logit of a row is NaN or infinite: check the model's output")
    return where


def row_cumsum(wide: VocabRows) -> VocabRows:
    """Running sums along each row; in float64, since 256k float32 additions lose small tokens."""
    if isinstance(wide, Tensor):
        return wide.cumsum(-1, dtype=torch.float64)
    return wide.cumsum(-1)


def count_true(condition: Any) -> IntArray:
    """How many entries of each row are true."""
    if isinstance(condition, Tensor):
        return condition.sum(-1).numpy(force=True)
    return np.asarray(condition.sum(-1), dtype=np.int64)


def normalize_exponent(wide: VocabRows) -> tuple[VocabRows, PerRow]:
    """Rows times powers of two that bring their masses near 1, and those masses.

    Powers of two are exact, and no decision depends on the scale of a residual; without this a long run of
    refused siblings would underflow. Fractions do not underflow and are left alone.
    """
    masses = row_sums(wide)
    if not isinstance(wide, Tensor) or (masses > _SMALL).all():
        return wide, masses
    factors = np.ldexp(1.0, np.clip(-np.frexp(masses)[1], -_MOST_DOUBLINGS, _MOST_DOUBLINGS))
    return scale_rows(wide, factors), masses * factors


def rescale_pair(a: PerRow, b: PerRow) -> tuple[PerRow, PerRow]:
    """a and b times a common power of two that brings b near 1, so that long products do not underflow."""
    if b.dtype == object:
        return a, b
    exponent = np.frexp(b)[1]
    return np.ldexp(a, -exponent), np.ldexp(b, -exponent)


def _column(wide: VocabRows, numbers: PerRow) -> Any:
    """A number per row, as a column beside `wide`."""
    if isinstance(wide, Tensor):
        return torch.from_numpy(np.asarray(numbers, dtype=np.float64)).to(wide.device, wide.dtype)[:, None]
    return np.asarray(numbers)[:, None]


def _are_all(rows: IntArray, wide: VocabRows) -> bool:
    """Whether these are all rows of an array, in order."""
    return len(rows) == len(wide) and bool((rows == np.arange(len(rows))).all())
