"""Array types: NumPy arrays by dtype, distributions, and sequences of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Float32Array: TypeAlias = npt.NDArray[np.float32]

Distribution: TypeAlias = Any
"""A one-dimensional array over the vocabulary: a torch tensor, or Fractions in a NumPy object array."""


class Tokens(Protocol):
    """A sliceable sequence of token ids: a list, an array, or a view of either."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, index: int, /) -> int: ...

    @overload
    def __getitem__(self, index: slice, /) -> Sequence[int] | npt.NDArray[np.integer[Any]]: ...
