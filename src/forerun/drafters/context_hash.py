"""Incremental hash of a context, extended one token per call."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from forerun.core.jit import compiled

UInt64Array: TypeAlias = npt.NDArray[np.uint64]

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_FINAL_MULTIPLIER: Final = np.uint64(0xD6E8FEB86659FD93)
_SHIFT: Final = np.uint64(32)


@compiled
def extend_hash(key: np.uint64, token: int) -> np.uint64:
    """Hash of the context with one more token."""
    key = (key ^ np.uint64(token)) * _MULTIPLIER
    return (key ^ (key >> _SHIFT)) * _FINAL_MULTIPLIER
