"""Acceptance probabilities, and expected speedups of chains: Leviathan et al., sections 3.1 to 3.5 and A.5.

alpha is the acceptance rate, gamma the number of draft tokens, c the cost of one draft token and c_hat its
arithmetic operations, both relative to one forward pass of the target. As in the paper, the draft tokens of a
chain are accepted independently with equal probability, unless a function takes one factor per position.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.types import FloatArray


def acceptance(p: FloatArray, q: FloatArray, lenience: float = 1.0) -> float:
    """beta, the acceptance probability of a draft token sampled from q (theorem 3.5).

    With lenience l it is the sum of min(p / l, q).
    """
    return float(np.minimum(np.asarray(p) / lenience, q).sum())


def coupled_matches(p: FloatArray, q: FloatArray) -> FloatArray:
    """Probability that the exponential races of p and q with shared clocks both select x, for each token x.

    1 / sum over y of max(p(y) / p(x), q(y) / q(x)) (Moulton and Jiang 2018, arXiv 1809.04052). The sum over x
    is the acceptance rate of a coupled draft: at most beta, and at least (1 - TV) / (1 + TV), which equals
    beta / (2 - beta) (Daliri et al. 2024, arXiv 2408.07978). p and q need not be normalised.
    """
    both = np.flatnonzero((p > 0) & (q > 0))
    order = both[np.argsort(q[both] / p[both], kind="stable")]
    p_x, q_x = np.asarray(p[order], dtype=np.float64), np.asarray(q[order], dtype=np.float64)
    # The first ratio is the larger one where q(y) / p(y) is at most q(x) / p(x), the second elsewhere.
    p_up_to = p[q == 0].sum(dtype=np.float64) + np.cumsum(p_x)
    q_above = q[p == 0].sum(dtype=np.float64) + np.append(np.cumsum(q_x[::-1])[::-1][1:], 0.0)
    matches = np.zeros(len(p))
    if len(order):
        matches[order] = 1.0 / (p_up_to / p_x + q_above / q_x)
    return matches


def lenient_distance(p: FloatArray, q: FloatArray, lenience: float) -> float:
    """Total variation distance between p and the tokens emitted with lenience l.

    A token x is emitted with probability min(p(x) / l, q(x)) as a draft token, and otherwise from the
    normalised max(p - q, 0).
    """
    p, q = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    emitted = np.minimum(p / lenience, q)
    residual = np.maximum(p - q, 0.0)
    if residual.any():
        emitted = emitted + (1.0 - emitted.sum()) * residual / residual.sum()
    return float(np.abs(emitted - p).sum() / 2)


def expected_tokens(alpha: float, gamma: int) -> float:
    """Expected tokens per step (equation 1): (1 - alpha^(gamma + 1)) / (1 - alpha)."""
    return float(sum(alpha**i for i in range(gamma + 1)))


def expected_accepted(alpha: float, gamma: int) -> float:
    """Expected accepted draft tokens per step: all its tokens except the last."""
    return expected_tokens(alpha, gamma) - 1.0


def expected_accepted_along(factors: Sequence[float], gamma: int) -> list[float]:
    """Expected accepted draft tokens of steps that start at each position of an output.

    `factors` are the acceptance probabilities of a draft token at each position, given the emitted token and
    that the draft tokens before it are accepted. Starts with fewer than gamma tokens left are omitted.
    """
    values = np.asarray(factors, dtype=np.float64)
    starts = range(len(values) - gamma + 1)
    return [float(np.cumprod(values[start : start + gamma]).sum()) for start in starts]


def expected_steps(factors: Sequence[float], gamma: int) -> float:
    """Expected number of steps for an output, with up to gamma draft tokens in each.

    `factors` are the acceptance probabilities of a draft token at each position, given the emitted token and
    that the draft tokens before it are accepted. A step never drafts beyond the last but one token.
    """
    num = len(factors)
    steps = [0.0] * (num + 1)
    for start in range(num - 1, -1, -1):
        reached, remaining = 1.0, 1.0
        for at in range(start, min(start + gamma, num - 1)):
            remaining += reached * (1.0 - factors[at]) * steps[at + 1]
            reached *= factors[at]
        steps[start] = remaining + reached * steps[min(start + gamma, num - 1) + 1]
    return steps[0]


def speedup(alpha: float, gamma: int, c: float = 0.0, verification: float = 1.0) -> float:
    """Expected wall-time improvement over non-speculative decoding (theorem 3.8).

    `verification` is the time of verifying gamma draft tokens, relative to one forward pass without any; the
    paper takes it as 1.
    """
    return expected_tokens(alpha, gamma) / (gamma * c + verification)


def oracle_speedup(alpha: float, c: float = 0.0) -> float:
    """`speedup` if every draft had exactly the tokens that will be accepted, without a bound (section 3.5).

    Steps emit 1 / (1 - alpha) tokens and draft all but one of them.
    """
    return 1.0 / (1.0 - alpha + c * alpha) if alpha < 1.0 or c else float("inf")


def operations(alpha: float, gamma: int, c_hat: float = 0.0) -> float:
    """Arithmetic operations relative to non-speculative decoding (theorem 3.11)."""
    return (gamma * c_hat + gamma + 1.0) / expected_tokens(alpha, gamma)


def best_gamma(alpha: float, c: float, max_gamma: int = 256) -> int:
    """The gamma with the highest `speedup` (section 3.5); 0 is non-speculative decoding.

    The speedup rises and then falls with gamma, so the search ends at the first fall. With c = 0 it never
    falls and the result is `max_gamma`.
    """
    for gamma in range(max_gamma):
        if speedup(alpha, gamma + 1, c) <= speedup(alpha, gamma, c):
            return gamma
    return max_gamma
