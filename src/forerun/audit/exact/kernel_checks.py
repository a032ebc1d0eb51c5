"""Float tensors and compiled kernels against the exact code, bit for bit on dyadic numbers.

Dyadic probabilities with few bits make every float operation exact, so any difference is a difference in
logic. The grids are exhaustive.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any, Final

import numpy as np

from forerun.audit.exact.claims import Claim, ClaimKind, lenient_by
from forerun.audit.exact.enumeration import Verifier
from forerun.audit.exact.toy_models import ExactDistribution, as_row
from forerun.core.block_verification import block_verify
from forerun.core.draft_forest import Forest
from forerun.core.exponential_race import clocks, exponential_race, exponential_race_rows
from forerun.core.nucleus import keep_nucleus, nucleus_by_sorting
from forerun.core.rejection_sampling import rejection_sample
from forerun.core.tensors import HAS_TORCH, torch
from forerun.types import Draft, Proposal, Verdict

CLAIMS: Final = (
    "reject in float32",
    "block in float32",
    "lenient in float32",
    "race, compiled",
    "top-p, compiled",
)
"""The rows of `compare_kernels`, in order."""


def compare_kernels() -> Iterator[Claim]:
    """Every comparison. Without torch none can be made, and each row states that it was not run."""
    if not HAS_TORCH:
        yield from (Claim(name, ClaimKind.KERNEL, None, num_cases=0, num_outcomes=0) for name in CLAIMS)
        return
    yield from compare_verifiers()
    yield compare_race()
    yield compare_nucleus()


def dyadic_laws(vocab_size: int, parts: int) -> list[ExactDistribution]:
    """Every distribution whose probabilities are multiples of 1/parts."""
    weights = (w for w in product(range(parts + 1), repeat=vocab_size) if sum(w) == parts)
    return [tuple(Fraction(w_x, parts) for w_x in w) for w in weights]


def dyadic_numbers(parts: int) -> list[Fraction]:
    """0, 1/parts, ... below 1."""
    return [Fraction(n, parts) for n in range(parts)]


class Grid:
    """Requests on a grid: trees of one shape, with p and q per row, u per row and v per request."""

    def __init__(
        self,
        parents: tuple[int, ...],
        vocab_size: int,
        parts: int,
        dice: int,
        *,
        replacement: bool = True,
        chosen: tuple[int, ...] = (),
    ) -> None:
        laws = dyadic_laws(vocab_size, parts)
        inner = sorted(set(parents))
        numbers = dyadic_numbers(dice)
        self.drafts: list[tuple[tuple[int, ...], dict[int, ExactDistribution]]] = []
        self.p: list[ExactDistribution] = []
        self.u: list[Fraction] = []
        self.v: list[Fraction] = []
        self.parents, self.replacement = parents, replacement
        self.sampled = np.array([node not in chosen for node in range(len(parents))])
        for qs, tokens in product(
            product(laws, repeat=len(inner)), product(range(vocab_size), repeat=len(parents))
        ):
            q = dict(zip(inner, qs, strict=True))
            if not self._drawable(tokens, q):
                continue
            for ps in product(laws, repeat=len(inner)):
                for judges in product(numbers, repeat=len(parents)):
                    self._add(tokens, q, dict(zip(inner, ps, strict=True)), judges, numbers)

    def _drawable(self, tokens: tuple[int, ...], q: dict[int, ExactDistribution]) -> bool:
        """Whether q can have drawn these tokens."""
        nodes = zip(self.parents, tokens, self.sampled, strict=True)
        siblings = [(parent, token) for parent, token, sampled in nodes if sampled]
        possible = all(q[parent][token] > 0 for parent, token in siblings)
        return possible and (self.replacement or len(set(siblings)) == len(siblings))

    def _add(
        self,
        tokens: Any,
        q: dict[int, ExactDistribution],
        p: dict[int, ExactDistribution],
        judges: Any,
        numbers: list[Fraction],
    ) -> None:
        """One request for every v."""
        leaf = tuple(Fraction(int(x == 0)) for x in range(len(next(iter(p.values())))))
        for v in numbers:
            self.drafts.append((tokens, q))
            self.p += [p.get(node, leaf) for node in range(-1, len(tokens))]
            self.u += [Fraction(0), *judges]
            self.v.append(v)

    def forest(self, as_array: Any) -> Forest:
        """The requests with q in this kind of array."""
        q = {id(law): as_array(law) for _, qs in self.drafts for law in qs.values()}
        return Forest.pack(
            [
                Draft(
                    np.array(tokens),
                    np.array(self.parents),
                    self.sampled,
                    {node: Proposal(q[id(law)], self.replacement) for node, law in qs.items()},
                )
                for tokens, qs in self.drafts
            ]
        )

    def exact(self, verify: Verifier) -> list[Verdict]:
        """The verdicts in rational numbers."""
        p = np.array(self.p, dtype=object)
        return verify(self.forest(as_row), p, np.array(self.u, dtype=object), np.array(self.v, dtype=object))

    def floats(self, verify: Verifier) -> list[Verdict]:
        """The verdicts in float32."""
        p = torch.tensor([[float(p_x) for p_x in law] for law in self.p])
        u, v = (np.array([float(x) for x in numbers]) for numbers in (self.u, self.v))
        return verify(self.forest(lambda law: torch.tensor([float(q_x) for q_x in law])), p, u, v)


def compare_verifiers() -> Iterator[Claim]:
    """Every verifier in float32 against itself in rational numbers."""
    pair, chain = (-1, -1), (-1, 0)
    subjects: list[tuple[str, Verifier, list[Grid]]] = [
        (
            "reject in float32",
            rejection_sample,
            [
                Grid((-1,), 2, 8, 4),
                Grid((-1,), 3, 4, 4),
                Grid(pair, 2, 4, 4),
                Grid(pair, 2, 4, 4, replacement=False),
                Grid(pair, 2, 4, 4, chosen=(0,)),
                Grid(pair, 2, 4, 4, chosen=(1,)),
            ],
        ),
        (
            "block in float32",
            block_verify,
            [Grid((-1,), 2, 8, 4), Grid(chain, 2, 2, 4), Grid(chain, 2, 2, 2, chosen=(0,))],
        ),
        ("lenient in float32", lenient_by(Fraction(1, 2)), [Grid((-1,), 2, 8, 4)]),
    ]
    for name, verify, grids in subjects:
        held = all(grid.floats(verify) == grid.exact(verify) for grid in grids)
        yield Claim(name, ClaimKind.KERNEL, held, len(grids), sum(len(grid.v) for grid in grids))


def compare_race() -> Claim:
    """The compiled race against the race as it is stated, over rows that span blocks, halves and lanes."""
    width, places = 2_500, (0, 5, 130, 700, 1_023, 1_024, 2_100, 2_499)
    laws = [law for law in dyadic_laws(4, 4) if len(set(law)) > 1]
    p = torch.zeros(len(laws), width)
    for row, law in enumerate(laws):
        for i, p_x in enumerate(law):
            p[row, [places[(2 * i + row) % 8], places[(2 * i + row + 1) % 8]]] = float(p_x) / 2
    held, num_outcomes = True, 0
    for key, position in product((0, -12345), (7, 2**33)):
        winners = exponential_race_rows(p, np.full(len(p), key), np.full(len(p), position))
        times = clocks(width, key, position)
        held &= winners.tolist() == [exponential_race(row.tolist(), times) for row in p]
        num_outcomes += len(p)
    return Claim("race, compiled", ClaimKind.KERNEL, held, len(laws), num_outcomes)


def compare_nucleus() -> Claim:
    """The compiled top-p against the one that sorts: coarse laws, and fine ones that use every bit."""
    coarse = torch.tensor([[float(p_x) for p_x in law] for law in dyadic_laws(4, 8)])
    fine = torch.randint(0, 2**12, (64, 600), generator=torch.Generator().manual_seed(0)).float() / 2**22
    held, num_outcomes = True, 0
    for p, cuts in ((coarse, (*np.arange(1, 8) / 8, 1.0, 0.7)), (fine, np.arange(1, 40) / 2**8 + 2**-20)):
        for cut in cuts:
            compiled = p.clone()
            keep_nucleus(compiled, np.full(len(p), 1.0 - cut))
            stated = nucleus_by_sorting(
                p, torch.full((len(p),), 1.0) - torch.full((len(p),), 1.0 - float(cut))
            )
            held &= torch.equal(compiled, stated)
            num_outcomes += len(p)
    return Claim("top-p, compiled", ClaimKind.KERNEL, held, len(coarse) + len(fine), num_outcomes)
