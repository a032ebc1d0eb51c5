"""The target's own draw, with noise that belongs to the position.

Every token has a clock that rings after an exponential time; divided by p(x), the first to ring is x with
probability p(x). Two distributions that share their clocks mostly agree on the winner, which is what
coupled drafting lives on, and the winner never depends on what was guessed.

`race` says what is meant. `race_rows` does it for a batch: on the CPU by a compiled kernel that makes clocks
only for tokens that could still win, on other devices with torch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from forerun.core.jit import compiled, inlined
from forerun.core.noise import BLOCK, LANES, Stream, philox, token_noise
from forerun.core.row_threads import over_rows
from forerun.core.tensors import torch
from forerun.types import IntArray


def exponential_race(p: Any, clocks: Any) -> int:
    """The token whose clock over p rings first, the first of equals; -1 where p is nowhere positive.

    Over any numbers, compared by cross-multiplication.
    """
    best = -1
    for token in range(len(p)):
        if p[token] > 0 and (best < 0 or clocks[token] * p[best] < clocks[best] * p[token]):
            best = token
    return best


def clock(first: Any, rest: Any) -> Any:
    """An exponential time from 16 and 48 bits of noise: -log(1 - U), precise where it is small."""
    return -math.log1p(-(first * 281474976710656.0 + rest + 0.5) * 2.0**-64)


def clocks(num_tokens: int, key: int, position: int) -> list[float]:
    """The clocks of every token at a position: what `race_rows` races with."""
    first, rest = token_noise(np.arange(num_tokens), position, key)
    return [clock(f, r) for f, r in zip(first.tolist(), rest.tolist(), strict=True)]


def exponential_race_rows(p: torch.Tensor, keys: IntArray, positions: IntArray) -> IntArray:
    """The winner of each row's race with the clocks of its key and position; -1 where there is none."""
    if p.device.type != "cpu":
        return _race_with_torch(p, keys, positions)
    winners = np.empty(len(p), dtype=np.int64)
    over_rows(_race_some, len(p), p.numpy(), keys, positions, winners)
    return winners


def _race_with_torch(p: torch.Tensor, keys: IntArray, positions: IntArray) -> IntArray:
    """The same race where no compiled kernel runs. Clocks may differ from the CPU's in their last bit."""
    tokens = torch.arange(p.shape[1], device=p.device)
    winners = []
    for row, key, position in zip(p, keys.tolist(), positions.tolist(), strict=True):
        first, rest = token_noise(tokens, position, key)
        rings = -torch.log1p(-(first.double() * 281474976710656.0 + rest + 0.5) * 2.0**-64) / row
        winner = torch.where(row > 0, rings, math.inf).argmin()
        winners.append(torch.where(row[winner] > 0, winner, -1))
    return torch.stack(winners).numpy(force=True)


_philox = inlined(philox)
_clock = inlined(clock)
_CLOCK, _CLOCK_TAIL = int(Stream.CLOCK), int(Stream.CLOCK_TAIL)


@compiled
def _race_some(first: int, last: int, p: Any, keys: Any, positions: Any, winners: Any) -> None:
    """`race_rows` for the rows from first to last."""
    words = np.empty(BLOCK // 2, np.uint32)
    for row in range(first, last):
        winners[row] = _first_to_ring(p[row], keys[row], positions[row], words)


@compiled
def _first_to_ring(p: Any, key: int, position: int, words: Any) -> int:
    """`race` with the clocks of (key, position), made only where a token could still win.

    A clock is at least its U, and U at least its first bits: comparing those with p times the leading time
    rules out nearly all tokens before the rest of their noise is made or a logarithm taken.
    """
    place = (position & 0xFFFFFFFF, position >> 32, key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF)
    leader = (-1, 1.0, 0.0, np.float32(np.inf))
    for begin in range(0, len(p), len(words)):
        half = 16 * (begin // len(words) % 2)
        if half == 0:
            _first_words(begin // 8, place, words)
        if _any_within(words, half, p[begin : begin + len(words)], leader[3]):
            for low in range(begin, min(begin + len(words), len(p)), LANES):
                some = words[low - begin : low - begin + LANES]
                if _any_within(some, half, p[low : low + LANES], leader[3]):
                    leader = _race_on(p, low, some, half, place, leader)
    return leader[0]


@compiled
def _race_on(p: Any, begin: int, words: Any, half: int, place: Any, leader: Any) -> Any:
    """`race` among a few tokens and the leader so far: its token, clock, p, and the bound on rivals."""
    c1, c3, k0, k1 = place
    best, best_clock, best_p, bound = leader
    for token in range(begin, min(begin + len(words), len(p))):
        bits, p_x = (words[token - begin] >> half) & 0xFFFF, np.float64(p[token])
        if p_x > 0 and np.float32(bits) <= p[token] * bound:
            own = _philox(token, c1, _CLOCK_TAIL, c3, k0, k1)
            rings = _clock(np.float64(bits), ((own[0] & 0xFFFF) << 32) | own[1])
            if best < 0 or rings * best_p < best_clock * p_x:
                best, best_clock, best_p = token, rings, p_x
                bound = np.float32(best_clock / best_p * 65536.0 * 1.000001)
    return best, best_clock, best_p, bound


@compiled
def _first_words(counter: int, place: Any, words: Any) -> None:
    """The words that hold the first bits of a block of tokens."""
    c1, c3, k0, k1 = place
    for j in range(LANES):
        a, b, c, d = _philox(counter + j, c1, _CLOCK, c3, k0, k1)
        words[j], words[LANES + j], words[2 * LANES + j], words[3 * LANES + j] = a, b, c, d


@compiled
def _any_within(words: Any, half: int, p: Any, bound: Any) -> bool:
    """Whether the first bits of some token lie within p times the bound; 32 bits wide and vectorised."""
    hits = np.int32(0)
    for j in range(len(p)):
        bits = np.int32((words[j] >> np.uint32(half)) & np.uint32(0xFFFF))
        hits = np.int32(hits + np.int32(np.float32(bits) <= p[j] * bound))
    return bool(hits > 0)
