"""What is proved: every verifier that claims a law, in the worlds and on the trees it claims it for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np

from forerun.audit.exact.distribution import Comparison, compare, most_overstated
from forerun.audit.exact.enumeration import (
    EnumeratedStep,
    EnumerationCase,
    Interval,
    StepModel,
    Verifier,
    draw_tokens,
    play_out,
    with_replaced,
)
from forerun.audit.exact.toy_models import (
    CHAINS,
    CHOSEN_CHAINS,
    MIXED_TREES,
    ONE_CHOSEN,
    ToyModel,
    TreeShape,
    trees,
)
from forerun.core import rejection_sampling as reject_module
from forerun.core.block_verification import block_verify
from forerun.core.draft_forest import Forest
from forerun.core.lenient import lenient
from forerun.core.rejection_sampling import rejection_sample
from forerun.types import Verdict


class ClaimKind(StrEnum):
    """What a row claims; the value is the word for it in reports."""

    LOSSLESS = "equal"
    LOSSY = "bounded"
    KERNEL = "agrees"
    MUTANT = "caught"


@dataclass(frozen=True, slots=True)
class Claim:
    """One line of the report.

    `held` is what matters: the law is equal, the bound kept, the kernel in agreement, the mutant caught;
    None where the comparison was not run, as for kernels where torch is not installed.
    `distance` is the largest total variation distance seen between laws, exact.
    """

    name: str
    kind: ClaimKind
    held: bool | None
    num_cases: int
    num_outcomes: int
    distance: Fraction | None = None


@dataclass(frozen=True)
class Subject:
    """A way to speculate, and the trees it is tried on."""

    name: str
    engine: StepModel
    shapes: tuple[TreeShape, ...]
    flavours: tuple[str, ...] = ("generic", "sparse", "equal")


def noise_of_dropped(play: EnumeratedStep, verdict: Verdict) -> tuple[Interval, ...]:
    """The numbers that drew the guesses behind the first refused one, for the next round to draw with.

    Harmless after `reject`, which has not looked at those guesses; not after `block`, which has.
    """
    return tuple((u.low, u.high) for u in play.drawn[len(verdict.accepted) + 1 :])


HONEST = (
    Subject("reject, chains", StepModel(rejection_sample, draw_tokens), CHAINS),
    Subject("reject, chosen guesses", StepModel(rejection_sample, draw_tokens), CHOSEN_CHAINS),
    Subject(
        "reject, trees with replacement", StepModel(rejection_sample, draw_tokens), trees(replacement=True)
    ),
    Subject(
        "reject, trees without replacement",
        StepModel(rejection_sample, draw_tokens),
        trees(replacement=False),
    ),
    Subject("reject, mixed trees", StepModel(rejection_sample, draw_tokens), MIXED_TREES),
    Subject(
        "reject, unseen noise drawn again",
        StepModel(rejection_sample, draw_tokens, carry=noise_of_dropped),
        CHAINS[1:2],
    ),
    Subject(
        "reject, guess by guess",
        StepModel(with_replaced(rejection_sample, reject_module, "STRIDE", 1), draw_tokens),
        CHAINS[2:],
    ),
    Subject(
        "reject, two by two",
        StepModel(with_replaced(rejection_sample, reject_module, "STRIDE", 2), draw_tokens),
        CHAINS[2:],
    ),
    Subject("block, chains", StepModel(block_verify, draw_tokens), CHAINS),
    Subject("block, chosen guesses", StepModel(block_verify, draw_tokens), CHOSEN_CHAINS),
)


def cases_of(subject: Subject) -> Iterator[list[EnumerationCase]]:
    """The cases of a subject, one list per vocabulary size; each plays its shape and then another round.

    With two tokens the shape is repeated; with three it is followed by one drawn guess and with four by one
    chosen guess, so that a second round starts from every outcome of the first at a cost that stays small.
    The largest trees get one world.
    """
    for vocab_size in (2, 3, 4):
        cases = []
        for shape in subject.shapes:
            num_drafts = vocab_size ** sum(shape.sampled)
            if not _enough_tokens(shape, vocab_size) or num_drafts > 729:
                continue
            rounds = (shape, {2: shape, 3: CHAINS[0], 4: ONE_CHOSEN}[vocab_size])
            flavours = [f for f in subject.flavours if f != "sparse" or shape.replacement]
            cases += [
                EnumerationCase(ToyModel(vocab_size, seed=len(shape.parents), flavour=flavour), rounds)
                for flavour in (flavours[:1] if num_drafts > 30 else flavours)
            ]
        if cases:
            yield cases


def _enough_tokens(shape: TreeShape, vocab_size: int) -> bool:
    """Whether siblings that are drawn without replacement find enough tokens."""
    return shape.replacement or max(shape.parents.count(parent) for parent in shape.parents) <= vocab_size


def play_and_compare(subject: Subject) -> tuple[list[Comparison], int]:
    """Each case's emitted law against its target, and how many outcomes were visited."""
    comparisons: list[Comparison] = []
    num_outcomes = 0
    for cases in cases_of(subject):
        for case, emitted in zip(cases, play_out(subject.engine, cases), strict=True):
            comparisons.append(compare(emitted.law, case.world.p))
            num_outcomes += emitted.num_outcomes
    return comparisons, num_outcomes


def prove(subject: Subject) -> Claim:
    """Whether the emitted law equals the target's in every case."""
    comparisons, num_outcomes = play_and_compare(subject)
    return Claim(
        subject.name,
        ClaimKind.LOSSLESS,
        held=all(each.equal for each in comparisons),
        num_cases=len(comparisons),
        num_outcomes=num_outcomes,
        distance=max(each.distance for each in comparisons),
    )


LENIENCES = (Fraction(1), Fraction(9, 10), Fraction(1, 2))


def lenient_by(lenience: Fraction) -> Verifier:
    """`lenient` with the same lenience for every request."""

    def verify(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
        return lenient(forest, p, u, v, np.array([lenience] * forest.num_requests, dtype=v.dtype))

    return verify


LENIENT_SHAPES = (CHAINS[0], CHAINS[1], trees(replacement=True)[0], trees(replacement=False)[1])


def prove_bound(name: str, verify: Verifier, lenience: Fraction) -> Claim:
    """Whether no token is more than 1/l times as likely as it should be; and how far the law strays."""
    subject = Subject(name, StepModel(verify, draw_tokens), LENIENT_SHAPES)
    held, num_cases, num_outcomes, furthest = True, 0, 0, Fraction(0)
    for two_rounds in cases_of(subject):
        cases = [EnumerationCase(case.world, case.shapes[:1]) for case in two_rounds]
        for case, emitted in zip(cases, play_out(subject.engine, cases), strict=True):
            distance = compare(emitted.law, case.world.p).distance
            held &= most_overstated(emitted.law, case.world.p) <= 1 / lenience
            held &= lenience < 1 or distance == 0
            furthest = max(furthest, distance)
            num_cases, num_outcomes = num_cases + 1, num_outcomes + emitted.num_outcomes
    return Claim(name, ClaimKind.LOSSY, held, num_cases, num_outcomes, furthest)


def prove_lenient() -> Iterator[Claim]:
    """Lenience on chains and trees."""
    for lenience in LENIENCES:
        yield prove_bound(f"lenient, l = {lenience}", lenient_by(lenience), lenience)
