"""Expected speedups of chains: Leviathan et al., sections 3.1 to 3.5 and A.5.

alpha is the acceptance rate, gamma the number of draft tokens, c the cost of one draft token and c_hat its
arithmetic operations, both relative to one forward pass of the target. As in the paper, the draft tokens of a
chain are accepted independently with equal probability.
"""

from __future__ import annotations

import numpy as np

from forerun.types import FloatArray


def acceptance(p: FloatArray, q: FloatArray, lenience: float = 1.0) -> float:
    """beta, the acceptance probability of a draft token sampled from q (theorem 3.5).

    With lenience l it is the sum of min(p / l, q).
    """
    return float(np.minimum(np.asarray(p) / lenience, q).sum())


def expected_tokens(alpha: float, gamma: int) -> float:
    """Expected tokens per step (equation 1): (1 - alpha^(gamma + 1)) / (1 - alpha)."""
    return float(sum(alpha**i for i in range(gamma + 1)))


def expected_accepted(alpha: float, gamma: int) -> float:
    """Expected accepted draft tokens per step: all its tokens except the last."""
    return expected_tokens(alpha, gamma) - 1.0


def speedup(alpha: float, gamma: int, c: float = 0.0) -> float:
    """Expected wall-time improvement over non-speculative decoding (theorem 3.8)."""
    return expected_tokens(alpha, gamma) / (gamma * c + 1.0)


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
