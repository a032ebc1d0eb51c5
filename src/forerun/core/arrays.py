"""Array operations that torch tensors and NumPy arrays of Fractions express differently.

All other code in `core` uses operators that both support. Arrays over the vocabulary (`VocabRows`) stay on
the device of the logits; arrays with one number per row (`PerRow`) are NumPy arrays on the host.
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


_MAX_EXPONENT = 120
"""Largest power of two used for rescaling; it is representable in float32."""


_MIN_MASS = 2.0**-20
"""Rows whose mass is above this are not rescaled."""


class RowSource(Protocol):
    """Vocabulary rows on demand: a tensor, or an object that computes only the requested rows.

    It may also provide `token_probs(rows, columns)`, where single entries are cheaper than whole rows, and
    `read_only_rows(rows)`, where rows are available without a copy.
    """

    def __getitem__(self, rows: IntArray, /) -> VocabRows: ...


def on_cpu(matrix: VocabRows) -> bool:
    """Whether compiled kernels can run over this array."""
    return isinstance(matrix, Tensor) and matrix.device.type == "cpu"


def copy_rows(source: Any, rows: IntArray) -> VocabRows:
    """A copy of these rows. `index_select` is about forty times faster than indexing with a NumPy array."""
    if isinstance(source, Tensor):
        return source.index_select(0, torch.from_numpy(rows).to(source.device))
    return source[rows]


def read_rows(matrix: VocabRows, rows: IntArray) -> VocabRows:
    """These rows, read-only: the array itself if they are all of its rows in order, otherwise a copy."""
    return matrix if _is_all_rows(rows, matrix) else copy_rows(matrix, rows)


def stack(rows: Any) -> VocabRows:
    """Stack separate rows into one array; an array is returned unchanged."""
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


def entries(matrix: VocabRows, rows: IntArray, columns: IntArray) -> PerRow:
    """matrix[rows[i], columns[i]] for every i."""
    if isinstance(matrix, Tensor):
        at = torch.from_numpy(rows * matrix.shape[1] + columns).to(matrix.device)
        return matrix.take(at).double().numpy(force=True)
    return matrix[rows, columns]


def token_probs(source: Any, rows: IntArray, columns: IntArray) -> PerRow:
    """source[rows[i], columns[i]] for every i; reads only these entries if the source supports it."""
    return (
        source.token_probs(rows, columns)
        if hasattr(source, "token_probs")
        else entries(source, rows, columns)
    )


def read_each_row(source: Any, rows: IntArray) -> list[Any]:
    """These rows as a list, read-only."""
    result: list[Any] = (
        source.read_only_rows(rows)
        if hasattr(source, "read_only_rows")
        else [source[row] for row in rows.tolist()]
    )
    return result


def overwrite_rows(matrix: VocabRows, rows: IntArray, values: VocabRows) -> VocabRows:
    """Overwrite these rows in place; returns `values` itself where they replace every row."""
    if _is_all_rows(rows, matrix):
        return values
    if isinstance(matrix, Tensor):
        return matrix.index_copy_(0, torch.from_numpy(rows).to(matrix.device), values)
    matrix[rows] = values
    return matrix


def zero_entries(matrix: VocabRows, rows: IntArray, columns: IntArray) -> None:
    """Set matrix[rows[i], columns[i]] to zero for every i."""
    if isinstance(matrix, Tensor) and len(rows):
        matrix[torch.from_numpy(rows).to(matrix.device), torch.from_numpy(columns).to(matrix.device)] = 0
    elif len(rows):
        matrix[rows, columns] = 0


def ones_like_rows(matrix: VocabRows) -> PerRow:
    """A one per row: float64 for tensors, a Python number for Fractions."""
    return np.ones(len(matrix), dtype=np.float64 if isinstance(matrix, Tensor) else object)


def scale_rows(matrix: VocabRows, factors: PerRow) -> VocabRows:
    """Multiply each row by its own factor."""
    return matrix * _column(matrix, factors)


def clamp_to_positive(matrix: VocabRows) -> VocabRows:
    """max(x, 0) per entry; may overwrite its argument."""
    if isinstance(matrix, Tensor):
        return matrix.clamp_min_(0)
    return matrix * (matrix > 0)


def row_sums(matrix: VocabRows) -> PerRow:
    """The sum of each row."""
    if isinstance(matrix, Tensor):
        return matrix.sum(-1).double().numpy(force=True)
    return matrix.sum(-1)


def row_argmax(matrix: VocabRows) -> tuple[IntArray, PerRow]:
    """Index and value of the first maximum of each row."""
    if isinstance(matrix, Tensor):
        top, where = matrix.max(-1)
        return where.numpy(force=True), top.double().numpy(force=True)
    where = matrix.argmax(-1)
    return where, entries(matrix, np.arange(len(matrix)), where)


def finite_argmax(matrix: torch.Tensor, rows: IntArray) -> IntArray:
    """Index of the first maximum of each of these rows; raises if the maximum is NaN or infinite.

    On the CPU it runs row by row with NumPy, whose argmax is vectorised and needs no copy of float32 rows.
    """
    if on_cpu(matrix):
        selected = (matrix[row] for row in rows.tolist())
        where = np.array([row.to(torch.float32).numpy().argmax() for row in selected], dtype=np.int64)
    else:
        where = copy_rows(matrix, rows).argmax(-1).numpy(force=True)
    if not np.isfinite(entries(matrix, rows, where)).all():
        raise InvalidDistribution("the largest logit of a row is NaN or infinite; check the model's output")
    return where


def row_cumsum(matrix: VocabRows) -> VocabRows:
    """Cumulative sums of each row, in float64: 256k float32 additions lose tokens of low probability."""
    if isinstance(matrix, Tensor):
        return matrix.cumsum(-1, dtype=torch.float64)
    return matrix.cumsum(-1)


def count_true(condition: Any) -> IntArray:
    """Number of true entries per row."""
    if isinstance(condition, Tensor):
        return condition.sum(-1).numpy(force=True)
    return np.asarray(condition.sum(-1), dtype=np.int64)


def normalize_exponent(matrix: VocabRows) -> tuple[VocabRows, PerRow]:
    """Scale rows by powers of two so that their masses are near 1; returns the rows and the masses.

    Powers of two are exact and no acceptance test depends on the scale of a residual. Without scaling, a long
    run of rejected siblings would underflow. Fractions cannot underflow and are returned unchanged.
    """
    masses = row_sums(matrix)
    if not isinstance(matrix, Tensor) or (masses > _MIN_MASS).all():
        return matrix, masses
    factors = np.ldexp(1.0, np.clip(-np.frexp(masses)[1], -_MAX_EXPONENT, _MAX_EXPONENT))
    return scale_rows(matrix, factors), masses * factors


def rescale_pair(a: PerRow, b: PerRow) -> tuple[PerRow, PerRow]:
    """Scale a and b by a common power of two that brings b near 1, so that long products do not underflow."""
    if b.dtype == object:
        return a, b
    exponent = np.frexp(b)[1]
    return np.ldexp(a, -exponent), np.ldexp(b, -exponent)


def _column(matrix: VocabRows, numbers: PerRow) -> Any:
    """One number per row as a column vector that broadcasts over `matrix`."""
    if isinstance(matrix, Tensor):
        return torch.from_numpy(np.asarray(numbers, dtype=np.float64)).to(matrix.device, matrix.dtype)[
            :, None
        ]
    return np.asarray(numbers)[:, None]


def _is_all_rows(rows: IntArray, matrix: VocabRows) -> bool:
    """Whether `rows` selects every row of the array, in order."""
    return len(rows) == len(matrix) and bool((rows == np.arange(len(rows))).all())
