"""The likeliest tokens of rows of logits, with their probabilities.

On the CPU a compiled kernel keeps the largest logit of every column of tokens, and finds the likeliest tokens
in the few columns with the largest ones. It takes a fifth of the time of torch's operations.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from forerun.core.jit import compiled, compiled_with_fastmath
from forerun.core.row_threads import over_rows
from forerun.core.tensors import torch
from forerun.types import Float32Array, IntArray

_NUM_COLUMNS: Final = 512
"""Column c has the tokens c, c + 512, c + 1024, ..., so that the maxima of all columns are found at once."""

_MIN_ROWS_PER_THREAD: Final = 8
"""A row takes about 30 microseconds at 50k tokens."""


def top_tokens(
    logits: torch.Tensor, num: int, rows: IntArray | None = None
) -> tuple[npt.NDArray[np.int32], Float32Array]:
    """The `num` likeliest tokens of each row, most likely first, and their probabilities at temperature 1.

    Without `rows`, of all rows. Waits for the device. On the CPU, equally likely tokens are in the order of
    their ids. Rows with NaN or without a finite logit have probabilities of 0.
    """
    num = min(num, logits.shape[-1])
    rows = np.arange(len(logits)) if rows is None else rows
    if logits.device.type != "cpu":
        tokens, probs = (each.numpy(force=True) for each in top_tokens_on_device(logits, num))
        return tokens[rows], probs[rows]
    values = logits.detach().float().contiguous().numpy()
    found = np.empty((len(rows), num), dtype=np.int32)
    found_probs = np.empty((len(rows), num), dtype=np.float32)
    over_rows(
        _top_tokens_range,
        len(rows),
        values,
        rows,
        found,
        found_probs,
        min_rows_per_thread=_MIN_ROWS_PER_THREAD,
    )
    return found, found_probs


def warm_up() -> None:
    """Compile the kernel."""
    top_tokens(torch.zeros(1, 2), 1)


def top_tokens_on_device(logits: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference implementation, and that for devices, with which it does not synchronize."""
    values, tokens = logits.topk(num, dim=-1)
    return tokens.int(), (values.float() - logits.float().logsumexp(-1, keepdim=True)).exp()


@compiled
def _top_tokens_range(first: int, last: int, logits: Any, rows: Any, tokens: Any, probs: Any) -> None:
    """`top_tokens` for the listed rows first to last - 1."""
    maxima = np.empty(min(_NUM_COLUMNS, logits.shape[1]), np.float32)
    for at in range(first, last):
        row = logits[rows[at]]
        _column_maxima(row, maxima)
        _select(row, maxima, tokens[at])
        largest = row[tokens[at, 0]]
        total = _sum_exp(row, largest)
        for i in range(tokens.shape[1]):
            p = np.exp(row[tokens[at, i]] - largest) / total
            probs[at, i] = p if p > 0.0 else 0.0


@compiled
def _column_maxima(row: Any, maxima: Any) -> None:
    """Write the largest logit of every column; vectorised."""
    width = len(maxima)
    maxima[:] = row[:width]
    for start in range(width, len(row), width):
        part = row[start : start + width]
        for column in range(len(part)):
            maxima[column] = part[column] if part[column] > maxima[column] else maxima[column]


@compiled
def _select(row: Any, maxima: Any, tokens: Any) -> None:
    """Write the tokens with the largest logits, in order. A row with NaN repeats a token.

    A column's maximum becomes that of the tokens that have not been taken.
    """
    for i in range(len(tokens)):
        best = -1
        largest = maxima.max()
        for column in range(len(maxima)):
            if maxima[column] == largest:
                token = _first(row, column, len(maxima), largest, tokens[:i])
                best = token if best < 0 or 0 <= token < best else best
        if best < 0:
            tokens[i:] = tokens[i - 1] if i else 0
            return
        tokens[i] = best
        column, taken = best % len(maxima), tokens[: i + 1]
        maxima[column] = np.float32(-np.inf)
        for token in range(column, len(row), len(maxima)):
            if row[token] > maxima[column] and not _contains(taken, token):
                maxima[column] = row[token]


@compiled
def _first(row: Any, column: int, width: int, logit: Any, taken: Any) -> int:
    """The first token of a column with this logit that is not taken, or -1."""
    for token in range(column, len(row), width):
        if row[token] == logit and not _contains(taken, token):
            return token
    return -1


@compiled
def _contains(tokens: Any, token: int) -> bool:
    """Whether a token is among a few."""
    for i in range(len(tokens)):  # noqa: SIM110 (compiled)
        if tokens[i] == token:
            return True
    return False


@compiled_with_fastmath("reassoc", "contract", "nsz")
def _sum_exp(row: Any, largest: Any) -> Any:
    """The sum of exp(x - largest), each to a few parts in a million; vectorised.

    exp is a power of two, whose bits are set, times a polynomial.
    """
    total = np.float32(0.0)
    for i in range(len(row)):
        x = max((row[i] - largest) * np.float32(1.44269504), np.float32(-126.0))
        n = np.floor(x)
        r = x - n
        p = np.float32(1.8775767e-3) * r + np.float32(8.9893397e-3)
        p = p * r + np.float32(5.5826318e-2)
        p = p * r + np.float32(2.4015361e-1)
        p = p * r + np.float32(6.9315308e-1)
        p = p * r + np.float32(9.9999994e-1)
        total += p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return total
