"""Sampling by Gumbel noise hashed from a seed and the token id, as vLLM's CPU sampler does it.

The sampled token is the one with the largest logit / temperature + Gumbel noise (the Gumbel-max trick). The
noise of a token is SplitMix64(seed, token id), in float64. vLLM's kernel computes an exponential or logarithm
for every token; this one for a few tokens of a row, and finds the same token. It samples the rows of a draft
one after the other as long as their tokens equal the draft, so rows after a rejection cost nothing.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from forerun.core.jit import compiled, inlined
from forerun.core.row_threads import over_rows
from forerun.types import IntArray
from forerun.types.sampling import GREEDY_TEMPERATURE

BLOCK: Final = 128
"""Tokens that are compared with the best token at once."""

MIN_WEIGHT: Final = 2.0**-55
"""The smallest possible -log u is 2^-54, so a token with a relative weight below this cannot win."""

_MIN_CHAINS_PER_THREAD: Final = 2

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST_MULTIPLIER: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER: Final = np.uint64(0x94D049BB133111EB)
"""SplitMix64's constants (Steele, Lea and Flood, 2014)."""

_POSITIVE_INFINITY: Final = np.int32(0x7F800000)
_NEGATIVE_INFINITY: Final = np.int32(-0x7F800001)
"""Infinities as `_ordered` maps them."""


def sample_chains(
    logits: Any, temperatures: Any, seeds: IntArray, lengths: IntArray, drafts: IntArray
) -> tuple[IntArray, IntArray]:
    """Sample every chain up to its first token that differs from its draft, that token included.

    `logits` has, chain after chain, one row per draft token and one more. `seeds` and `drafts` have one row
    per chain. Returns the tokens, one row per chain, and their numbers: 0 where a row cannot be sampled
    because a logit is NaN or infinite, or all are masked.
    """
    starts = np.cumsum(lengths + 1) - lengths - 1
    tokens, counts = np.empty(seeds.shape, dtype=np.int64), np.zeros(len(seeds), dtype=np.int64)
    over_rows(
        _sample_chain_range,
        len(seeds),
        *(logits, temperatures, seeds, starts, lengths, drafts, tokens, counts),
        min_rows_per_thread=_MIN_CHAINS_PER_THREAD,
    )
    return tokens, counts


def _splitmix(z: Any) -> Any:
    """SplitMix64's output function."""
    z = (z ^ (z >> np.uint64(30))) * _FIRST_MULTIPLIER
    z = (z ^ (z >> np.uint64(27))) * _SECOND_MULTIPLIER
    return z ^ (z >> np.uint64(31))


def _ordered(bits: Any) -> Any:
    """The bits of a float32 as an integer in the order of the floats; NaN lies beyond the infinities."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


_hash, _to_ordered = inlined(_splitmix), inlined(_ordered)


@compiled
def _sample_chain_range(  # noqa: PLR0913, PLR0917
    first: int,
    last: int,
    logits: Any,
    temperatures: Any,
    seeds: IntArray,
    starts: IntArray,
    lengths: IntArray,
    drafts: IntArray,
    tokens: IntArray,
    counts: IntArray,
) -> None:
    """`sample_chains` for chains first to last - 1."""
    maxima = np.empty((logits.shape[1] + BLOCK - 1) // BLOCK, np.float32)
    for chain in range(first, last):
        for position in range(lengths[chain] + 1):
            row = logits[starts[chain] + position]
            token = _sample(row, temperatures[chain], seeds[chain, position], maxima)
            if token < 0:
                counts[chain] = 0
                break
            accepted = position < lengths[chain] and token == drafts[chain, position]
            tokens[chain, position] = token
            counts[chain] = position + 1
            if not accepted:
                break


@compiled
def _sample(row: Any, temperature: Any, seed: int, maxima: Any) -> int:
    """The token of a row; -1 if a logit is NaN or infinite, or all are masked.

    With u uniform, the noise is -log(-log u). A token with logit x beats the score s if -log u < exp(x - s).
    Since -log u >= 1 - u, comparing 1 - u with the exp of a block's largest logit excludes nearly all tokens.
    """
    best, largest = _block_maxima(row, maxima)
    if best < 0 or temperature < GREEDY_TEMPERATURE:
        return best
    key = _hash(np.uint64(seed))
    score = _score(np.float32(largest / temperature), key, best)
    for block in range(len(maxima)):
        weight = math.exp(np.float64(np.float32(maxima[block] / temperature)) - score)
        if weight >= MIN_WEIGHT:
            # The least random integer that can win; the margins cover rounding.
            limit = np.int64(2.0**53 * (1.0 - 1.000001 * weight)) - 2 if weight < 0.9 else np.int64(0)
            begin, end = block * BLOCK, min((block + 1) * BLOCK, len(row))
            if _any_reaches(limit, key, begin, end - begin):
                for token in range(begin, end):
                    if np.int64(_noise_bits(key, token)) >= limit:
                        other = _score(np.float32(row[token] / temperature), key, token)
                        if other > score or (other == score and token < best):
                            score, best = other, token
    return best


@compiled
def _block_maxima(row: Any, maxima: Any) -> tuple[int, Any]:
    """Write the largest logit of every block; returns the first token with the largest of all, and its logit.

    Compares as integers, which numba vectorises. The token is -1 if a logit is NaN or infinite.
    """
    bits, best_block = row.view(np.int32), 0
    smallest, largest = _POSITIVE_INFINITY, _NEGATIVE_INFINITY
    maxima_bits = maxima.view(np.int32)
    for block in range(len(maxima)):
        low, high = _extremes(bits[block * BLOCK : (block + 1) * BLOCK])
        maxima_bits[block] = _to_ordered(high)  # its own inverse
        smallest = min(smallest, low)
        if high > largest:
            largest, best_block = high, block
    if smallest < _NEGATIVE_INFINITY or largest <= _NEGATIVE_INFINITY or largest >= _POSITIVE_INFINITY:
        return -1, np.float32(0.0)
    best = best_block * BLOCK if largest else 0  # -0.0 equals 0.0
    while row[best] != maxima[best_block]:
        best += 1
    return best, maxima[best_block]


@compiled
def _extremes(bits: Any) -> tuple[Any, Any]:
    """The least and the largest of some logits, as ordered integers."""
    low, high = _POSITIVE_INFINITY, np.int32(-0x80000000)
    for i in range(len(bits)):
        value = _to_ordered(bits[i])
        low, high = min(low, value), max(high, value)
    return low, high


@compiled
def _any_reaches(limit: Any, key: Any, begin: int, num: int) -> bool:
    """Whether the random integer of any token of a block is at least `limit`; vectorised."""
    start, hits = key + np.uint64(begin + 1) * _GAMMA, np.int64(0)
    for j in range(num):
        hits += np.int64(np.int64(_hash(start + np.uint64(j) * _GAMMA) >> np.uint64(11)) >= limit)
    return bool(hits > 0)


@compiled
def _noise_bits(key: Any, token: int) -> Any:
    """The 53 random bits of a token."""
    return _hash(key + np.uint64(token + 1) * _GAMMA) >> np.uint64(11)


@compiled
def _score(x: Any, key: Any, token: int) -> float:
    """The scaled logit `x` of a token plus its Gumbel noise, in float64 as in vLLM."""
    u = (np.float64(_noise_bits(key, token)) + 0.5) * 2.0**-53
    return np.float64(x) - math.log(-math.log(u))
