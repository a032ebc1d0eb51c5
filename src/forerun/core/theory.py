"""What to expect of speculation: Leviathan et al., sections 3.1 to 3.5 and A.5, and the same for trees.

alpha is the chance that a guess stands, gamma the number of guesses, c the cost of one guess and c_hat its
operations, both relative to one run of the target. The chances of a chain's guesses are taken as equal and
independent, as in the paper; a tree has a survival probability per node instead.
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
    """beta, the chance that a guess from q stands (theorem 3.5); with lenience l, sum of min(p / l, q)."""
    return float(np.minimum(np.asarray(p) / lenience, q).sum())


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens per run of the target (equation 1): (1 - alpha^(gamma + 1)) / (1 - alpha)."""
    return float(sum(alpha**i for i in range(gamma + 1)))


def expected_accepted(alpha: float, gamma: int) -> float:
    """Guesses kept per run of the target: all its tokens but the last."""
    return expected_tokens(alpha, gamma) - 1.0


def speedup(alpha: float, gamma: int, c: float = 0.0) -> float:
    """Wall-time improvement over plain decoding (theorem 3.8)."""
    return expected_tokens(alpha, gamma) / (gamma * c + 1.0)


def operations(alpha: float, gamma: int, c_hat: float = 0.0) -> float:
    """Arithmetic operations over plain decoding's (theorem 3.11)."""
    return (gamma * c_hat + gamma + 1.0) / expected_tokens(alpha, gamma)


def best_gamma(alpha: float, c: float, most: int = 256) -> int:
    """The number of guesses that gains most (section 3.5); 0 is plain decoding.

    The gain rises and then falls with gamma, so the first fall ends the search; where guesses cost nothing
    it never falls and the answer is `most`.
    """
    for gamma in range(most):
        if speedup(alpha, gamma + 1, c) <= speedup(alpha, gamma, c):
            return gamma
    return most


def guaranteed_speedup(alpha: float, c: float) -> float:
    """What a single guess gains (corollary 3.9): more than 1 whenever alpha > c."""
    return (1.0 + alpha) / (1.0 + c)


def alpha_from_tokens(tokens_per_step: float, gamma: int) -> float:
    """The alpha that gives so many tokens per run of the target: equation 1 read backwards."""
    if tokens_per_step <= 1.0:
        return 0.0
    if tokens_per_step >= gamma + 1:
        return 1.0
    return float(brentq(lambda alpha: expected_tokens(alpha, gamma) - tokens_per_step, 0.0, 1.0))


def expected_tokens_of_tree(survival: Sequence[float]) -> float:
    """Tokens per run of the target for a tree: one, plus the chance of each node that it is kept.

    A node's survival is the chance that it and everything above it stand. A chain of equal chances alpha
    has survivals alpha, alpha^2, ..., which gives equation 1.
    """
    return 1.0 + float(sum(survival))


def speedup_of_tree(
    survival: Sequence[float], cost: Callable[[int], float], draft_cost: float = 0.0
) -> float:
    """Theorem 3.8 for a tree, where verifying n nodes costs cost(n), and cost(0) is a plain step."""
    return expected_tokens_of_tree(survival) * cost(0) / (cost(len(survival)) + draft_cost)


def best_tree_size(survival: Sequence[float], cost: Callable[[int], float]) -> int:
    """How many nodes, taken in order of survival, give the most tokens per time; 0 is plain decoding."""
    ordered = sorted(survival, reverse=True)
    gains = [speedup_of_tree(ordered[:n], cost) for n in range(len(ordered) + 1)]
    return int(np.argmax(gains))
