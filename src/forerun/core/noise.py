"""Counter-based noise: the same (key, stream, position, index) always gives the same number.

Philox 4x32-10 (Salmon et al. 2011) has no sequential state, so nothing needs to be rolled back, and the rows
of a batch, the ranks of an engine and the steps of a request agree without communication. The key is the
request's seed, or a private key for unseeded requests.

Streams separate the uses: each number is used once, except where sharing it is the coupling itself.
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
"""Number of counters computed side by side."""

BLOCK = LANES * 8
"""Number of tokens whose leading bits one set of lanes provides: 4 words of 2 halves per counter."""


class Stream(IntEnum):
    """The purpose of a random number: testing a draft token, sampling the next token, drafting, clocks."""

    ACCEPT = 0
    NEXT_TOKEN = 1
    DRAFT = 2
    CLOCK = 3
    CLOCK_TAIL = 4


def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """Four 32-bit words from a counter of four words and a key of two.

    One implementation for Python ints, NumPy arrays, torch tensors and compiled code: every value is an int64
    that holds 32 bits, and products are masked where they would set the sign.
    """
    for _ in range(_ROUNDS):
        a = c0 * 0xD2511F53
        b = c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((b >> 32) & _LOW) ^ c1 ^ k0, b & _LOW, ((a >> 32) & _LOW) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c0, c1, c2, c3


def halves(key: Any) -> tuple[Any, Any]:
    """A 64-bit key as the two 32-bit words that Philox takes."""
    return key & _LOW, (key >> 32) & _LOW


def signed(key: int) -> int:
    """The 64 bits of a key as a signed integer, so that every seed that torch accepts is valid."""
    return (key + 2**63) % 2**64 - 2**63


def uniforms(key: IntArray, stream: Stream, position: IntArray, index: IntArray) -> FloatArray:
    """Uniform numbers in [0, 1) with 53 bits, one per address.

    For ACCEPT and NEXT_TOKEN, the position is the length of the sequence at the start of the step and the
    index is the draft token. The pair never recurs, so no step reuses a number of another step.
    """
    numbers = np.empty(len(key))
    _fill(key, int(stream), position, index, numbers)
    return numbers


_philox = inlined(philox)


@compiled
def _fill(key: Any, stream: int, position: Any, index: Any, numbers: Any) -> None:
    """Compiled loop of `uniforms`."""
    for i in range(len(numbers)):
        k0, k1 = key[i] & _LOW, (key[i] >> 32) & _LOW
        high, low, _, _ = _philox(index[i] & _LOW, position[i] & _LOW, stream, position[i] >> 32, k0, k1)
        numbers[i] = ((high << 21) | (low >> 11)) * 2.0**-53


def token_noise(tokens: Any, position: Any, key: Any) -> tuple[Any, Any]:
    """64 random bits of each token at a position, in two parts: the leading 16 and the other 48.

    One counter provides the leading bits of eight tokens, because they decide most races alone; the other
    bits come from one counter per token. No address depends on the vocabulary size, so a draft and a target
    model that differ by padding share their noise.
    """
    counter = tokens // BLOCK * LANES + tokens % LANES
    shared = philox(counter, *_counter_tail(Stream.CLOCK, position), *halves(key))
    word = sum((tokens // LANES % 4 == w) * each for w, each in enumerate(shared))
    own = philox(tokens, *_counter_tail(Stream.CLOCK_TAIL, position), *halves(key))
    return (word >> (tokens // (LANES * 4) % 2 * 16)) & 0xFFFF, ((own[0] & 0xFFFF) << 32) | own[1]


def _counter_tail(stream: Stream, position: Any) -> tuple[Any, Any, Any]:
    """The last three words of a Philox counter, for this stream and position."""
    return position & _LOW, int(stream), position >> 32
