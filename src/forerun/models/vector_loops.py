"""How torch's CPU kernels divide a loop over the elements of a tensor among threads and vector registers.

Elements that do not fill a vector at the end of a thread's share are computed by scalar functions, whose
exponentials can differ from the vectorised ones in the last bit.
"""

from __future__ import annotations

from typing import Final

_ELEMENTS_PER_THREAD: Final = 32768
"""A loop is divided into shares of at least this many elements."""

_ELEMENTS_PER_STEP: Final = 64
"""Elements of one step of a vectorised loop: two AVX-512 registers of bfloat16."""


def splits_into_whole_vectors(num_elements: int, num_threads: int) -> bool:
    """Whether no element of a loop is computed by scalar functions."""
    num_shares = min(num_threads, -(-num_elements // _ELEMENTS_PER_THREAD))
    share = -(-num_elements // num_shares)
    return num_elements % _ELEMENTS_PER_STEP == 0 and (num_shares == 1 or share % _ELEMENTS_PER_STEP == 0)
