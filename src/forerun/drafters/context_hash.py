"""Keys of contexts: a hash that grows by one token at a time."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from forerun.core.jit import compiled

Words: TypeAlias = npt.NDArray[np.uint64]

_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_STIR: Final = np.uint64(0xD6E8FEB86659FD93)
_HALF: Final = np.uint64(32)


@compiled
def fold(key: np.uint64, token: int) -> np.uint64:
    """The key of a context that is one token longer."""
    key = (key ^ np.uint64(token)) * _SPREAD
    return (key ^ (key >> _HALF)) * _STIR
