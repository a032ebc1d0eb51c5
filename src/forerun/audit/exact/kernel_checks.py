"""Float tensors and compiled kernels compared with the exact code, bit for bit on dyadic numbers.

Dyadic probabilities with few bits make every float operation exact, so any difference is a difference in
logic. The grids are exhaustive.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any, Final

import numpy as np

from forerun.audit.exact.claims import Claim, ClaimKind, with_lenience
from forerun.audit.exact.enumeration import Verifier
from forerun.audit.exact.toy_models import ExactDistribution, as_row
from forerun.core.block_verification import block_verify
from forerun.core.draft_forest import Forest
from forerun.core.exponential_race import clocks, exponential_race, exponential_race_rows
from forerun.core.nucleus import apply_top_p, top_p_by_sorting
from forerun.core.rejection_sampling import rejection_sample
from forerun.core.tensors import HAS_TORCH, torch
from forerun.types import Draft, Proposal, Verdict

KERNEL_CLAIMS: Final = (
    "rejection_sample in float32",
    "block_verify in float32",
    "lenient in float32",
    "exponential_race, compiled",
    "top-p, compiled",
)
"""Names of the rows of `compare_kernels`, in order."""


def compare_kernels() -> Iterator[Claim]:
    """All kernel comparisons. Without torch none can run, and every row reports that."""
    if not HAS_TORCH:
        yield from (
            Claim(name, ClaimKind.KERNEL, None, num_cases=0, num_outcomes=0) for name in KERNEL_CLAIMS
        )
        return
    yield from compare_verifiers()
    yield compare_race()
    yield compare_nucleus()


def dyadic_distributions(vocab_size: int, parts: int) -> list[ExactDistribution]:
    """Every distribution whose probabilities are multiples of 1/parts."""
    weights = (w for w in product(range(parts + 1), repeat=vocab_size) if sum(w) == parts)
    return [tuple(Fraction(w_x, parts) for w_x in w) for w in weights]


def dyadic_numbers(parts: int) -> list[Fraction]:
    """0, 1/parts, ... below 1."""
    return [Fraction(n, parts) for n in range(parts)]


class KernelGrid:
    """Requests on a grid: trees of one shape, with p and q per row, u per row and v per request."""

    def __init__(
        self,
        parents: tuple[int, ...],
        vocab_size: int,
        parts: int,
        num_uniforms: int,
        *,
        replacement: bool = True,
        chosen: tuple[int, ...] = (),
    ) -> None:
        distributions = dyadic_distributions(vocab_size, parts)
        inner = sorted(set(parents))
        numbers = dyadic_numbers(num_uniforms)
        self.drafts: list[tuple[tuple[int, ...], dict[int, ExactDistribution]]] = []
        self.p: list[ExactDistribution] = []
        self.u: list[Fraction] = []
        self.v: list[Fraction] = []
        self.parents, self.replacement = parents, replacement
        self.sampled = np.array([node not in chosen for node in range(len(parents))])
        for qs, tokens in product(
            product(distributions, repeat=len(inner)), product(range(vocab_size), repeat=len(parents))
        ):
            q = dict(zip(inner, qs, strict=True))
            if not self._can_be_sampled(tokens, q):
                continue
            for ps in product(distributions, repeat=len(inner)):
                for u in product(numbers, repeat=len(parents)):
                    self._add(tokens, q, dict(zip(inner, ps, strict=True)), u, numbers)

    def _can_be_sampled(self, tokens: tuple[int, ...], q: dict[int, ExactDistribution]) -> bool:
        """Whether q can have produced these tokens."""
        nodes = zip(self.parents, tokens, self.sampled, strict=True)
        siblings = [(parent, token) for parent, token, sampled in nodes if sampled]
        possible = all(q[parent][token] > 0 for parent, token in siblings)
        return possible and (self.replacement or len(set(siblings)) == len(siblings))

    def _add(
        self,
        tokens: Any,
        q: dict[int, ExactDistribution],
        p: dict[int, ExactDistribution],
        u: Any,
        numbers: list[Fraction],
    ) -> None:
        """Add one request for every v."""
        leaf = tuple(Fraction(int(x == 0)) for x in range(len(next(iter(p.values())))))
        for v in numbers:
            self.drafts.append((tokens, q))
            self.p += [p.get(node, leaf) for node in range(-1, len(tokens))]
            self.u += [Fraction(0), *u]
            self.v.append(v)

    def forest(self, as_array: Any) -> Forest:
        """The requests, with q as arrays of this type."""
        rows = {id(q): as_array(q) for _, qs in self.drafts for q in qs.values()}
        return Forest.pack(
            [
                Draft(
                    np.array(tokens),
                    np.array(self.parents),
                    self.sampled,
                    {node: Proposal(rows[id(q)], self.replacement) for node, q in qs.items()},
                )
                for tokens, qs in self.drafts
            ]
        )

    def verify_exact(self, verify: Verifier) -> list[Verdict]:
        """The verdicts in rational arithmetic."""
        p = np.array(self.p, dtype=object)
        return verify(self.forest(as_row), p, np.array(self.u, dtype=object), np.array(self.v, dtype=object))

    def verify_float32(self, verify: Verifier) -> list[Verdict]:
        """The verdicts in float32."""
        p = torch.tensor([[float(p_x) for p_x in row] for row in self.p])
        u, v = (np.array([float(x) for x in numbers]) for numbers in (self.u, self.v))
        return verify(self.forest(lambda q: torch.tensor([float(q_x) for q_x in q])), p, u, v)


def compare_verifiers() -> Iterator[Claim]:
    """Every verifier in float32 against the same verifier in rational arithmetic."""
    pair, chain = (-1, -1), (-1, 0)
    verifiers: list[tuple[str, Verifier, list[KernelGrid]]] = [
        (
            "rejection_sample in float32",
            rejection_sample,
            [
                KernelGrid((-1,), 2, 8, 4),
                KernelGrid((-1,), 3, 4, 4),
                KernelGrid(pair, 2, 4, 4),
                KernelGrid(pair, 2, 4, 4, replacement=False),
                KernelGrid(pair, 2, 4, 4, chosen=(0,)),
                KernelGrid(pair, 2, 4, 4, chosen=(1,)),
            ],
        ),
        (
            "block_verify in float32",
            block_verify,
            [KernelGrid((-1,), 2, 8, 4), KernelGrid(chain, 2, 2, 4), KernelGrid(chain, 2, 2, 2, chosen=(0,))],
        ),
        ("lenient in float32", with_lenience(Fraction(1, 2)), [KernelGrid((-1,), 2, 8, 4)]),
    ]
    for name, verify, grids in verifiers:
        held = all(grid.verify_float32(verify) == grid.verify_exact(verify) for grid in grids)
        yield Claim(name, ClaimKind.KERNEL, held, len(grids), sum(len(grid.v) for grid in grids))


def compare_race() -> Claim:
    """The compiled race against its definition, over rows that span blocks, halves and lanes."""
    width, columns = 2_500, (0, 5, 130, 700, 1_023, 1_024, 2_100, 2_499)
    distributions = [each for each in dyadic_distributions(4, 4) if len(set(each)) > 1]
    p = torch.zeros(len(distributions), width)
    for row, distribution in enumerate(distributions):
        for i, p_x in enumerate(distribution):
            p[row, [columns[(2 * i + row) % 8], columns[(2 * i + row + 1) % 8]]] = float(p_x) / 2
    held, num_outcomes = True, 0
    for key, position in product((0, -12345), (7, 2**33)):
        winners = exponential_race_rows(p, np.full(len(p), key), np.full(len(p), position))
        times = clocks(width, key, position)
        held &= winners.tolist() == [exponential_race(row.tolist(), times) for row in p]
        num_outcomes += len(p)
    return Claim("exponential_race, compiled", ClaimKind.KERNEL, held, len(distributions), num_outcomes)


def compare_nucleus() -> Claim:
    """The compiled top-p against the sorting reference, on coarse distributions and on fine ones."""
    coarse = torch.tensor([[float(p_x) for p_x in each] for each in dyadic_distributions(4, 8)])
    fine = torch.randint(0, 2**12, (64, 600), generator=torch.Generator().manual_seed(0)).float() / 2**22
    held, num_outcomes = True, 0
    for p, cuts in ((coarse, (*np.arange(1, 8) / 8, 1.0, 0.7)), (fine, np.arange(1, 40) / 2**8 + 2**-20)):
        for cut in cuts:
            compiled = p.clone()
            apply_top_p(compiled, np.full(len(p), 1.0 - cut))
            reference = top_p_by_sorting(
                p, torch.full((len(p),), 1.0) - torch.full((len(p),), 1.0 - float(cut))
            )
            held &= torch.equal(compiled, reference)
            num_outcomes += len(p)
    return Claim("top-p, compiled", ClaimKind.KERNEL, held, len(coarse) + len(fine), num_outcomes)
