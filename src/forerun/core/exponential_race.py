"""Sampling from the target by an exponential race, with noise addressed by position (the Gumbel-max trick).

Every token has an independent exponential clock. Divided by p(x), the clock of x is the smallest with
probability p(x). Two distributions that share their clocks mostly select the same token, on which coupled
drafting relies. The selected token never depends on the draft.

`exponential_race` is the definition. `exponential_race_rows` is the batched implementation: on the CPU a
compiled kernel that generates clocks only for tokens that can still win, on other devices torch.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from forerun.core.jit import compiled, inlined
from forerun.core.noise import BLOCK, LANES, Stream, philox, token_noise
from forerun.core.row_threads import over_rows
from forerun.core.tensors import torch
from forerun.types import IntArray

RACE_SPREAD: Final = 0.5
MAX_RACERS: Final = 64
"""For `race_confidences`: scale of the noise between log p and log q; tokens that are considered."""


def exponential_race(p: Any, clocks: Any) -> int:
    """The token with the smallest clock / p, the first of equals; -1 if no entry of p is positive.

    Works on any numbers: ratios are compared by cross-multiplication.
    """
    best = -1
    for token in range(len(p)):
        if p[token] > 0 and (best < 0 or clocks[token] * p[best] < clocks[best] * p[token]):
            best = token
    return best


def clock(first: Any, rest: Any) -> Any:
    """An exponential variate from 16 and 48 random bits: -log(1 - U), accurate for small U."""
    return -math.log1p(-(first * 281474976710656.0 + rest + 0.5) * 2.0**-64)


def clocks(num_tokens: int, key: int, position: int) -> list[float]:
    """The clocks of every token at a position, as used by `exponential_race_rows`."""
    first, rest = token_noise(np.arange(num_tokens), position, key)
    return [clock(f, r) for f, r in zip(first.tolist(), rest.tolist(), strict=True)]


def exponential_race_rows(p: torch.Tensor, keys: IntArray, positions: IntArray) -> IntArray:
    """The winner of each row's race with the clocks of its key and position; -1 where p has no mass."""
    if p.device.type != "cpu":
        return _race_with_torch(p, keys, positions)
    winners = np.empty(len(p), dtype=np.int64)
    over_rows(_race_row_range, len(p), p.numpy(), keys, positions, winners)
    return winners


def race_confidences(q: torch.Tensor, keys: IntArray, positions: IntArray) -> torch.Tensor:
    """[rows, vocabulary]: estimates of how likely each token wins a race of another, unknown distribution
    with the same clocks.

    They decrease in clock / q. If the logarithms of the unknown p differ from those of q by independent noise
    with a Gumbel distribution of scale `RACE_SPREAD`, they are exact. Only the `MAX_RACERS` most likely
    tokens of q are considered.
    """
    values, tokens = q.topk(min(MAX_RACERS, q.shape[1]), dim=-1)
    first, rest = token_noise(tokens.numpy(force=True), positions[:, None], keys[:, None])
    clocks_of_racers = _torch_clocks(*(torch.from_numpy(bits).to(q.device) for bits in (first, rest)))
    log_times = clocks_of_racers.log() - values.double().log()
    confidences = torch.softmax(-log_times / RACE_SPREAD, dim=-1).to(q.dtype)
    return torch.zeros_like(q).scatter_(1, tokens, confidences)


def _race_with_torch(p: torch.Tensor, keys: IntArray, positions: IntArray) -> IntArray:
    """The race on devices without compiled kernels. Clocks may differ from the CPU's in the last bit."""
    tokens = torch.arange(p.shape[1], device=p.device)
    winners = []
    for row, key, position in zip(p, keys.tolist(), positions.tolist(), strict=True):
        first, rest = token_noise(tokens, position, key)
        time = _torch_clocks(first, rest) / row
        winner = torch.where(row > 0, time, math.inf).argmin()
        winners.append(torch.where(row[winner] > 0, winner, -1))
    return torch.stack(winners).numpy(force=True)


def _torch_clocks(first: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """`clock` of tensors."""
    return -torch.log1p(-(first.double() * 281474976710656.0 + rest + 0.5) * 2.0**-64)


_philox = inlined(philox)
_clock = inlined(clock)
_CLOCK, _CLOCK_TAIL = int(Stream.CLOCK), int(Stream.CLOCK_TAIL)


@compiled
def _race_row_range(first: int, last: int, p: Any, keys: Any, positions: Any, winners: Any) -> None:
    """`exponential_race_rows` for rows first to last - 1."""
    block = np.empty(BLOCK // 2, np.uint32)
    for row in range(first, last):
        winners[row] = _race_row(p[row], keys[row], positions[row], block)


@compiled
def _race_row(p: Any, key: int, position: int, block: Any) -> int:
    """`exponential_race` with the clocks of (key, position), generated only for tokens that can still win.

    A clock is at least its U, and U is at least its leading bits. Comparing the leading bits with p times the
    best time so far excludes nearly all tokens before their remaining bits or a logarithm are computed.
    """
    address = (position & 0xFFFFFFFF, position >> 32, key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF)
    leader = (-1, 1.0, 0.0, np.float32(np.inf))
    for begin in range(0, len(p), len(block)):
        half = 16 * (begin // len(block) % 2)
        if half == 0:
            _fill_block(begin // 8, address, block)
        if _any_below_bound(block, half, p[begin : begin + len(block)], leader[3]):
            for low in range(begin, min(begin + len(block), len(p)), LANES):
                lanes = block[low - begin : low - begin + LANES]
                if _any_below_bound(lanes, half, p[low : low + LANES], leader[3]):
                    leader = _race_lanes(p, low, lanes, half, address, leader)
    return leader[0]


@compiled
def _race_lanes(p: Any, begin: int, block: Any, half: int, address: Any, leader: Any) -> Any:
    """`exponential_race` over a few tokens and the leader so far (token, clock, p, bound on other tokens)."""
    c1, c3, k0, k1 = address
    best, best_clock, best_p, bound = leader
    for token in range(begin, min(begin + len(block), len(p))):
        bits, p_x = (block[token - begin] >> half) & 0xFFFF, np.float64(p[token])
        if p_x > 0 and np.float32(bits) <= p[token] * bound:
            own = _philox(token, c1, _CLOCK_TAIL, c3, k0, k1)
            time = _clock(np.float64(bits), ((own[0] & 0xFFFF) << 32) | own[1])
            if best < 0 or time * best_p < best_clock * p_x:
                best, best_clock, best_p = token, time, p_x
                bound = np.float32(best_clock / best_p * 65536.0 * 1.000001)
    return best, best_clock, best_p, bound


@compiled
def _fill_block(counter: int, address: Any, block: Any) -> None:
    """Generate the 32-bit integers that hold the leading bits of a block of tokens."""
    c1, c3, k0, k1 = address
    for j in range(LANES):
        a, b, c, d = _philox(counter + j, c1, _CLOCK, c3, k0, k1)
        block[j], block[LANES + j], block[2 * LANES + j], block[3 * LANES + j] = a, b, c, d


@compiled
def _any_below_bound(block: Any, half: int, p: Any, bound: Any) -> bool:
    """Whether the leading bits of any token are at most p times the bound; 32 bits wide and vectorised."""
    hits = np.int32(0)
    for j in range(len(p)):
        bits = np.int32((block[j] >> np.uint32(half)) & np.uint32(0xFFFF))
        hits = np.int32(hits + np.int32(np.float32(bits) <= p[j] * bound))
    return bool(hits > 0)
