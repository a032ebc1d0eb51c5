"""The lossless and lossy claims: every verifier, with the toy models and tree shapes it is proved on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np

from forerun.audit.exact.distribution import Comparison, compare, max_probability_ratio
from forerun.audit.exact.enumeration import (
    EnumeratedStep,
    EnumerationCase,
    Interval,
    StepModel,
    Verifier,
    enumerate_steps,
    sample_draft,
    with_patched,
)
from forerun.audit.exact.run_ahead_steps import draft_ahead, prepared_for_outcome
from forerun.audit.exact.toy_models import (
    CHAINS,
    CHOSEN_CHAINS,
    MIXED_TREES,
    ONE_CHOSEN,
    SEVERAL_MODELS,
    ToyModel,
    TreeShape,
    trees,
)
from forerun.core import rejection_sampling as rejection_module
from forerun.core.block_verification import block_verify
from forerun.core.draft_forest import Forest
from forerun.core.lenient_verification import lenient
from forerun.core.rejection_sampling import rejection_sample
from forerun.types import Verdict


class ClaimKind(StrEnum):
    """The kind of a claim; the value is its term in reports."""

    LOSSLESS = "equal"
    LOSSY = "bounded"
    KERNEL = "agrees"
    MUTANT = "caught"


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the report.

    `held` is true if the distributions are equal, the bound holds, the kernel agrees or the mutant is caught.
    It is None where the comparison was not run, as for kernels where torch is not installed. `distance` is
    the largest total variation distance between the distributions, exact.
    """

    name: str
    kind: ClaimKind
    held: bool | None
    num_cases: int
    num_outcomes: int
    distance: Fraction | None = None


@dataclass(frozen=True)
class AuditedVerifier:
    """A way to speculate, and the tree shapes on which it is enumerated."""

    name: str
    step: StepModel
    shapes: tuple[TreeShape, ...]
    flavours: tuple[str, ...] = ("generic", "sparse", "equal")


def noise_of_unverified(step: EnumeratedStep, verdict: Verdict) -> tuple[Interval, ...]:
    """The noise of the draft tokens behind the first rejected one, for the next step to sample with.

    Reusing it is lossless after `rejection_sample`, which never tests those tokens, but not after
    `block_verify`, which does.
    """
    return tuple((u.low, u.high) for u in step.draft_noise[len(verdict.accepted) + 1 :])


LOSSLESS_VERIFIERS = (
    AuditedVerifier("rejection_sample, chains", StepModel(rejection_sample, sample_draft), CHAINS),
    AuditedVerifier(
        "rejection_sample, chosen draft tokens", StepModel(rejection_sample, sample_draft), CHOSEN_CHAINS
    ),
    AuditedVerifier(
        "rejection_sample, trees with replacement",
        StepModel(rejection_sample, sample_draft),
        trees(replacement=True),
    ),
    AuditedVerifier(
        "rejection_sample, trees without replacement",
        StepModel(rejection_sample, sample_draft),
        trees(replacement=False),
    ),
    AuditedVerifier("rejection_sample, mixed trees", StepModel(rejection_sample, sample_draft), MIXED_TREES),
    AuditedVerifier(
        "rejection_sample, several draft models", StepModel(rejection_sample, sample_draft), SEVERAL_MODELS
    ),
    AuditedVerifier(
        "rejection_sample, noise of unverified tokens reused",
        StepModel(rejection_sample, sample_draft, carry=noise_of_unverified),
        CHAINS[1:2],
    ),
    AuditedVerifier(
        "rejection_sample, run-ahead drafts",
        StepModel(rejection_sample, draft_ahead, carry=prepared_for_outcome),
        CHAINS[:2],
        ("generic",),
    ),
    AuditedVerifier(
        "block_verify, run-ahead drafts",
        StepModel(block_verify, draft_ahead, carry=prepared_for_outcome),
        CHAINS[1:2],
        ("generic",),
    ),
    AuditedVerifier(
        "rejection_sample, stride 1",
        StepModel(with_patched(rejection_sample, rejection_module, "STRIDE", 1), sample_draft),
        CHAINS[2:],
    ),
    AuditedVerifier(
        "rejection_sample, stride 2",
        StepModel(with_patched(rejection_sample, rejection_module, "STRIDE", 2), sample_draft),
        CHAINS[2:],
    ),
    AuditedVerifier("block_verify, chains", StepModel(block_verify, sample_draft), CHAINS),
    AuditedVerifier(
        "block_verify, chosen draft tokens", StepModel(block_verify, sample_draft), CHOSEN_CHAINS
    ),
)


def enumeration_cases(audited: AuditedVerifier) -> Iterator[list[EnumerationCase]]:
    """The cases of a verifier, one list per vocabulary size; each runs its shape and then a second step.

    With two tokens the shape is repeated; with three it is followed by one sampled draft token and with four
    by one chosen draft token, so that a second step starts from every outcome of the first at a small cost.
    The largest trees get one toy model.
    """
    for vocab_size in (2, 3, 4):
        cases = []
        for shape in audited.shapes:
            num_drafts = vocab_size ** sum(shape.sampled)
            if not _enough_tokens(shape, vocab_size) or num_drafts > 729:
                continue
            steps = (shape, {2: shape, 3: CHAINS[0], 4: ONE_CHOSEN}[vocab_size])
            flavours = [f for f in audited.flavours if f != "sparse" or shape.replacement]
            cases += [
                EnumerationCase(ToyModel(vocab_size, seed=len(shape.parents), flavour=flavour), steps)
                for flavour in (flavours[:1] if num_drafts > 30 else flavours)
            ]
        if cases:
            yield cases


def _enough_tokens(shape: TreeShape, vocab_size: int) -> bool:
    """Whether the vocabulary is large enough to sample the siblings without replacement."""
    siblings = Counter((parent, shape.model(node)) for node, parent in enumerate(shape.parents))
    return shape.replacement or max(siblings.values()) <= vocab_size


def enumerate_and_compare(audited: AuditedVerifier) -> tuple[list[Comparison], int]:
    """Compare each case's emitted distribution with its target; also returns the number of outcomes."""
    comparisons: list[Comparison] = []
    num_outcomes = 0
    for cases in enumeration_cases(audited):
        for case, emitted in zip(cases, enumerate_steps(audited.step, cases), strict=True):
            comparisons.append(compare(emitted.probabilities, case.model.p))
            num_outcomes += emitted.num_outcomes
    return comparisons, num_outcomes


def prove(audited: AuditedVerifier) -> Claim:
    """Whether the emitted distribution equals the target's in every case."""
    comparisons, num_outcomes = enumerate_and_compare(audited)
    return Claim(
        audited.name,
        ClaimKind.LOSSLESS,
        held=all(each.equal for each in comparisons),
        num_cases=len(comparisons),
        num_outcomes=num_outcomes,
        distance=max(each.distance for each in comparisons),
    )


LENIENCES = (Fraction(1), Fraction(9, 10), Fraction(1, 2))


def with_lenience(lenience: Fraction) -> Verifier:
    """`lenient` with the same lenience for every request."""

    def verify(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
        return lenient(forest, p, u, v, np.array([lenience] * forest.num_requests, dtype=v.dtype))

    return verify


LENIENT_SHAPES = (CHAINS[0], CHAINS[1], trees(replacement=True)[0], trees(replacement=False)[1])


def prove_bound(name: str, verify: Verifier, lenience: Fraction) -> Claim:
    """Whether no token is more than 1/l times as likely as under p, and the largest distance from p."""
    audited = AuditedVerifier(name, StepModel(verify, sample_draft), LENIENT_SHAPES)
    held, num_cases, num_outcomes, max_distance = True, 0, 0, Fraction(0)
    for two_steps in enumeration_cases(audited):
        cases = [EnumerationCase(case.model, case.shapes[:1]) for case in two_steps]
        for case, emitted in zip(cases, enumerate_steps(audited.step, cases), strict=True):
            distance = compare(emitted.probabilities, case.model.p).distance
            held &= max_probability_ratio(emitted.probabilities, case.model.p) <= 1 / lenience
            held &= lenience < 1 or distance == 0
            max_distance = max(max_distance, distance)
            num_cases, num_outcomes = num_cases + 1, num_outcomes + emitted.num_outcomes
    return Claim(name, ClaimKind.LOSSY, held, num_cases, num_outcomes, max_distance)


def prove_lenient() -> Iterator[Claim]:
    """Lenient verification on chains and trees."""
    for lenience in LENIENCES:
        yield prove_bound(f"lenient, l = {lenience}", with_lenience(lenience), lenience)
