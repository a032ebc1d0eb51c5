"""Expected speedups: Leviathan et al., sections 3.1 to 3.5 and A.5, extended to trees.

alpha is the acceptance rate, gamma the number of draft tokens, c the cost of one draft token and c_hat its
arithmetic operations, both relative to one forward pass of the target. As in the paper, the draft tokens of a
chain are accepted independently with equal probability; a tree has a survival probability per node instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import brentq

from forerun.types import FloatArray


def divergence(p: FloatArray, q: FloatArray) -> float:
    """D_LK(p, q) = 1 - sum of min(p, q) (definition 3.2, lemma 3.3): the total variation distance."""
    return 1.0 - float(np.minimum(p, q).sum())


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


def guaranteed_speedup(alpha: float, c: float) -> float:
    """The speedup of gamma = 1 (corollary 3.9): above 1 whenever alpha > c."""
    return (1.0 + alpha) / (1.0 + c)


def alpha_from_tokens(tokens_per_step: float, gamma: int) -> float:
    """The alpha that yields this number of tokens per step: the inverse of equation 1."""
    if tokens_per_step <= 1.0:
        return 0.0
    if tokens_per_step >= gamma + 1:
        return 1.0
    return float(brentq(lambda alpha: expected_tokens(alpha, gamma) - tokens_per_step, 0.0, 1.0))


def expected_tokens_of_tree(survival: Sequence[float]) -> float:
    """Expected tokens per step for a tree: 1 plus the sum of the survival probabilities.

    A node's survival is the probability that it and all its ancestors are accepted. A chain with equal
    acceptance alpha has survivals alpha, alpha^2, ..., which gives equation 1.
    """
    return 1.0 + float(sum(survival))


def speedup_of_tree(
    survival: Sequence[float], cost: Callable[[int], float], draft_cost: float = 0.0
) -> float:
    """Theorem 3.8 for a tree: verifying n nodes costs cost(n), and cost(0) is a non-speculative step."""
    return expected_tokens_of_tree(survival) * cost(0) / (cost(len(survival)) + draft_cost)


def best_tree_size(survival: Sequence[float], cost: Callable[[int], float]) -> int:
    """The number of nodes, taken in order of survival, with the highest speedup; 0 is non-speculative."""
    ordered = sorted(survival, reverse=True)
    speedups = [speedup_of_tree(ordered[:n], cost) for n in range(len(ordered) + 1)]
    return int(np.argmax(speedups))
