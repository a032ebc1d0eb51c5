"""Sabotaged verifiers: each replaces one line of a production verifier, or what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from forerun.audit.exact.claims import with_lenience
from forerun.audit.exact.enumeration import Verifier, patched
from forerun.core import arrays
from forerun.core.acceptance import accepts, residual_mass, sample_inverse_cdf
from forerun.core.draft_forest import NONE, Forest
from forerun.core.rejection_sampling import SiblingVerifier, rejection_sample
from forerun.types import Verdict


def with_last_token(change: Callable[[Forest, Any, int, int], Any]) -> Verifier:
    """`rejection_sample`, but the next token is sampled from change(forest, p, root, last row)."""

    def verify(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
        verdicts = rejection_sample(forest, p, u, v)
        last = [
            int(root) + (verdict.accepted[-1] + 1 if verdict.accepted else 0)
            for root, verdict in zip(forest.roots, verdicts, strict=True)
        ]
        weights = np.stack(
            [change(forest, p, int(root), row) for root, row in zip(forest.roots, last, strict=True)]
        )
        tokens = sample_inverse_cdf(weights, v)
        return [
            replace(verdict, next_token=int(token)) for verdict, token in zip(verdicts, tokens, strict=True)
        ]

    return verify


def resample_from_p(forest: Forest, p: Any, root: int, row: int) -> Any:
    """The recovered token is sampled from p, not from the residual."""
    return p[row]


def bonus_from_previous_row(forest: Forest, p: Any, root: int, row: int) -> Any:
    """The bonus token is sampled from the row before."""
    if forest.first_child[row] == NONE and row != root:
        return p[forest.parent[row]]
    siblings = SiblingVerifier(forest, np.array([row]), p[row : row + 1].copy())
    if forest.first_child[row] != NONE:
        siblings._subtract_rejected(np.array([0]), forest.first_child[[row]])
    return siblings.p[0]


def accept_rejected_token(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
    """The first rejected token is accepted too, and the next token is sampled from its residual."""
    verdicts = rejection_sample(forest, p, u, v)
    changed = []
    for root, verdict in zip(forest.roots.tolist(), verdicts, strict=True):
        last = root + (verdict.accepted[-1] + 1 if verdict.accepted else 0)
        rejected = int(forest.first_child[last])
        extra = () if rejected == NONE else (rejected - root - 1,)
        changed.append(Verdict(verdict.accepted + extra, verdict.next_token))
    return changed


def accept_by_argmax(u: Any, p_x: Any, q_x: Any, p_mass: Any = 1, q_mass: Any = 1) -> Any:
    """A draft token is accepted if its p is at least one half, regardless of u."""
    return p_x * 2 >= p_mass


def accept_by_swapped_ratio(u: Any, p_x: Any, q_x: Any, p_mass: Any = 1, q_mass: Any = 1) -> Any:
    """min(1, q/p) in place of min(1, p/q)."""
    return u * p_x * q_mass < q_x * p_mass


def _verify_siblings_against_full_p(self: SiblingVerifier, at: Any, nodes: Any, u: Any) -> Any:
    """All siblings are tested against the full p; only the next token comes from the residual."""
    full_p = arrays.read_each_row(self.full_p, self.rows[at])  # type: ignore[attr-defined]
    p_x = np.array(
        [row[token] for row, token in zip(full_p, self.forest.tokens[nodes], strict=True)], dtype=object
    )
    accepted = accepts(u[nodes], p_x, self.forest.q_of_tokens(nodes))
    rejected = np.flatnonzero(~accepted)
    if rejected.size:
        self._subtract_rejected(at[rejected], nodes[rejected])
    return accepted


def siblings_against_full_p(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
    """`rejection_sample` with `_verify_siblings_against_full_p`, which needs the original p."""
    with (
        patched(SiblingVerifier, "_verify_siblings", _verify_siblings_against_full_p),
        patched(SiblingVerifier, "full_p", p),
    ):
        return rejection_sample(forest, p, u, v)


def ignore_earlier_siblings(self: Forest, nodes: Any) -> Any:
    """Sampling without replacement is treated as sampling with replacement."""
    return np.array([], dtype=np.int64), np.array([], dtype=np.int64)


def residual_without_weight(p: Any, q: Any, p_mass: Any, q_mass: Any) -> Any:
    """`block_verify` with the residual of `rejection_sample`: max(p - q, 0), without the prefix weight."""
    return arrays.clamp_to_positive(p - arrays.stack(q))


def mass_without_weight(p: Any, q: Any, p_mass: Any, q_mass: Any) -> Any:
    """`block_verify` with an acceptance test that takes every prefix weight as 1."""
    return residual_mass(p, q, p_mass, p_mass)


def reject_at_temperature_zero(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
    """Temperature 0, but draft tokens are verified with the probabilities before temperature."""
    return rejection_sample(forest, _unwarped(p), u, v)


def _unwarped(p: Any) -> Any:
    """A point mass with a third of its mass spread uniformly, like the model's own probabilities."""
    return p * Fraction(2, 3) + Fraction(1, 3) / p.shape[1]


def lenient_twice(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
    """Lenience 1/2 applied twice, which breaks the bound of lenience 1/2."""
    return with_lenience(Fraction(1, 4))(forest, p, u, v)
