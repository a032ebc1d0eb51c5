"""Noise with an address: the same (key, stream, position, index) always gives the same number.

Philox 4x32-10 (Salmon et al. 2011) is counter-based, so nothing is drawn in order and nothing has to be
given back: rows of one batch, ranks of one engine and rounds of one request agree without talking. The key
is the request's seed, or a private one for requests without.

Streams keep uses apart: noise is used once, unless sharing it is the coupling itself.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from forerun.core.jit import compiled, inlined
from forerun.types import FloatArray, IntArray

_LOW = 0xFFFFFFFF
_ROUNDS = 10

LANES = 128
"""Counters that are worked out side by side."""

BLOCK = LANES * 8
"""Tokens whose first bits they make: each counter gives 4 words of 2 halves."""


class Stream(IntEnum):
    """What a number is for."""

    JUDGE = 0
    PICK = 1
    DRAFT = 2
    CLOCK = 3
    CLOCK_TAIL = 4


def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """Four 32-bit words from a counter of four and a key of two.

    One body for Python ints, NumPy arrays, torch tensors and compiled code: everything is an int64 that
    holds 32 bits, and products are masked where they would carry a sign.
    """
    for _ in range(_ROUNDS):
        a = c0 * 0xD2511F53
        b = c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((b >> 32) & _LOW) ^ c1 ^ k0, b & _LOW, ((a >> 32) & _LOW) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c0, c1, c2, c3


def halves(key: Any) -> tuple[Any, Any]:
    """A 64-bit key as the two words Philox takes."""
    return key & _LOW, (key >> 32) & _LOW


def signed(key: int) -> int:
    """The 64 bits of a key as a signed number, so that every seed torch takes is one."""
    return (key + 2**63) % 2**64 - 2**63


def uniforms(key: IntArray, stream: Stream, position: IntArray, index: IntArray) -> FloatArray:
    """Numbers in [0, 1) with 53 bits, one per address.

    For JUDGE and PICK the position is the length of the sequence when the round began, and the index the
    guess: both together never come back, so no round sees a number that another round has used.
    """
    numbers = np.empty(len(key))
    _fill(key, int(stream), position, index, numbers)
    return numbers


_philox = inlined(philox)


@compiled
def _fill(key: Any, stream: int, position: Any, index: Any, numbers: Any) -> None:
    """`uniforms`, one after another."""
    for i in range(len(numbers)):
        k0, k1 = key[i] & _LOW, (key[i] >> 32) & _LOW
        high, low, _, _ = _philox(index[i] & _LOW, position[i] & _LOW, stream, position[i] >> 32, k0, k1)
        numbers[i] = ((high << 21) | (low >> 11)) * 2.0**-53


def token_noise(tokens: Any, position: Any, key: Any) -> tuple[Any, Any]:
    """The noise of each token at a position, 64 bits in two parts: the first 16, and the other 48.

    The first bits of eight tokens come from one counter, since they settle most races alone; the others come
    from a counter per token. No address depends on the size of the vocabulary, so a draft and a target that
    differ by padding share their noise.
    """
    counter = tokens // BLOCK * LANES + tokens % LANES
    shared = philox(counter, *_place(Stream.CLOCK, position), *halves(key))
    word = sum((tokens // LANES % 4 == w) * each for w, each in enumerate(shared))
    own = philox(tokens, *_place(Stream.CLOCK_TAIL, position), *halves(key))
    return (word >> (tokens // (LANES * 4) % 2 * 16)) & 0xFFFF, ((own[0] & 0xFFFF) << 32) | own[1]


def _place(stream: Stream, position: Any) -> tuple[Any, Any, Any]:
    """The last three words of a counter: which number of the request's this is."""
    return position & _LOW, int(stream), position >> 32
