"""Which verifier judges which request, and the bound on memory while they do.

Greedy and seeded requests are followed, and so are chosen guesses: they stand with probability p(x) either
way. Guesses sampled from a q are judged by `reject` or `block`. Lenience is asked for by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

import numpy as np

from forerun.core.batch_sampling import BatchSampling
from forerun.core.block_verification import block_verify
from forerun.core.draft_forest import Forest
from forerun.core.lenient import lenient, lenient_greedy
from forerun.core.logits_processors import TokenHistory
from forerun.core.match_target import match_target
from forerun.core.noise import Stream, signed, uniforms
from forerun.core.rejection_sampling import rejection_sample
from forerun.core.target_distribution import READ_AHEAD, TargetDistribution, TargetTokens, UnwarpedTarget
from forerun.core.tensors import torch
from forerun.errors import InvalidDistribution, InvalidSampling
from forerun.types import Draft, FloatArray, IntArray, SamplingParams, Verdict

Verifier: TypeAlias = Literal["auto", "follow", "reject", "block"]

WORKING_BYTES = 512 * 2**20
"""What verification may hold beyond the logits and the drafts' own q."""

_BYTES_PER_ENTRY = 4 * READ_AHEAD * 7
"""What a request holds per entry of the vocabulary at the widest moment: the float32 rows that are read
ahead, seven times over (a top-k of nearly all tokens, on rows that had to be gathered). A test measures it.
"""


class Method(Enum):
    """The four verifiers, lenience in its two forms."""

    FOLLOW = "follow"
    REJECT = "reject"
    BLOCK = "block"
    LENIENT = "lenient"
    LENIENT_GREEDY = "lenient greedy"


@dataclass(frozen=True, slots=True, eq=False)
class VerifyRequest:
    """One request's part in a step: its guess, its settings, and where its noise is found.

    `jointly` says whether a drawn chain may be judged as a whole. Whoever joins drawn guesses with chosen
    ones must say no: whether that makes a chain depends on what was drawn, and who judges it may not.
    """

    draft: Draft
    sampling: SamplingParams
    key: int
    length: int
    history: TokenHistory = field(default_factory=TokenHistory)
    lenience: float = 1.0
    jointly: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.lenience <= 1:
            raise InvalidSampling(f"lenience is {self.lenience}; it must be more than 0 and at most 1")


def method_for(each: VerifyRequest, verifier: Verifier = "auto") -> Method:
    """The verifier of a request; `verifier` says which one judges guesses sampled from a q.

    Left to itself that is `block` for chains, which keeps more, and `reject` for trees.
    """
    if each.lenience < 1:
        return Method.LENIENT_GREEDY if each.sampling.greedy else Method.LENIENT
    sampling, draft = each.sampling, each.draft
    if sampling.greedy or sampling.seed is not None or verifier == "follow" or not draft.sampled.any():
        return Method.FOLLOW
    if verifier == "reject" or not each.jointly or not draft.is_chain:
        return Method.REJECT
    return Method.BLOCK


def verify(
    requests: Sequence[VerifyRequest], logits: torch.Tensor, verifier: Verifier = "auto"
) -> list[Verdict]:
    """The verdict of every request. Request after request, the logits have a row for its last committed
    token and one for each of its guesses.
    """
    sizes = np.array([len(each.draft) + 1 for each in requests], dtype=np.int64)
    if sizes.sum() != len(logits):
        raise InvalidDistribution(
            f"{len(logits)} rows of logits came for {sizes.sum()} rows: n guesses need n + 1"
        )
    first_row = np.cumsum(sizes) - sizes
    verdicts: dict[int, Verdict] = {}
    for method, members in _by_method(requests, verifier).items():
        for some in _parts(members, logits.shape[1]):
            at = np.concatenate([first_row[i] + np.arange(sizes[i]) for i in some])
            verdicts |= zip(some, _judge(method, [requests[i] for i in some], logits, at), strict=True)
    return [verdicts[i] for i in range(len(requests))]


def _judge(
    method: Method, rounds: Sequence[VerifyRequest], logits: torch.Tensor, at: IntArray
) -> list[Verdict]:
    """The verdicts of requests that share a verifier; `at` says which rows of the logits are theirs."""
    forest = Forest.pack([each.draft for each in rounds])
    forest.check_vocabulary(logits.shape[1])
    target = TargetDistribution(
        logits=logits,
        at=at,
        forest=forest,
        settings=BatchSampling.of([each.sampling for each in rounds]),
        keys=np.array([signed(each.key) for each in rounds], dtype=np.int64),
        lengths=np.array([each.length for each in rounds], dtype=np.int64),
        histories=[each.history for each in rounds],
    )
    if method is Method.FOLLOW:
        return match_target(forest, TargetTokens(target))
    lenience = np.array([each.lenience for each in rounds])
    if method is Method.LENIENT_GREEDY:
        return lenient_greedy(forest, UnwarpedTarget(target), lenience)
    u, v = verification_noise(target)
    if method is Method.LENIENT:
        return lenient(forest, target, u, v, lenience)
    return (block_verify if method is Method.BLOCK else rejection_sample)(forest, target, u, v)


def verification_noise(target: TargetDistribution) -> tuple[FloatArray, FloatArray]:
    """A number to judge each guess by, and one to draw each request's last token with."""
    forest = target.forest
    rows = np.arange(forest.num_rows)
    owner = forest.request_of(rows)
    u = uniforms(target.keys[owner], Stream.JUDGE, target.lengths[owner], rows - forest.roots[owner])
    v = uniforms(target.keys, Stream.PICK, target.lengths, np.zeros_like(target.lengths))
    return u, v


def _by_method(rounds: Sequence[VerifyRequest], verifier: Verifier) -> dict[Method, list[int]]:
    """The requests of each verifier."""
    members: dict[Method, list[int]] = {}
    for i, each in enumerate(rounds):
        members.setdefault(method_for(each, verifier), []).append(i)
    return members


def _parts(members: list[int], vocab_size: int) -> Iterator[list[int]]:
    """So many requests at a time that a row for each, and the work on it, fits the bound."""
    most = max(1, WORKING_BYTES // (_BYTES_PER_ENTRY * vocab_size))
    for first in range(0, len(members), most):
        yield members[first : first + most]
