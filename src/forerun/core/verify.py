"""Selects the verifier of each request and bounds the memory of verification.

Greedy and seeded requests use `match_target`, and so do drafts of chosen tokens, which every verifier accepts
with probability p(x). Draft tokens sampled from a q use `rejection_sample` or `block_verify`. Lenient
verification runs only on request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from forerun.config import VerifierName, current_verifier
from forerun.core.batch_sampling import BatchSampling
from forerun.core.block_verification import block_verify
from forerun.core.draft_forest import Forest
from forerun.core.lenient_verification import lenient, lenient_greedy
from forerun.core.logits_processors import TokenHistory
from forerun.core.noise import Stream, signed, uniforms
from forerun.core.rejection_sampling import rejection_sample
from forerun.core.target_distribution import PREFETCH_ROWS, TargetDistribution, TargetTokens, UnwarpedTarget
from forerun.core.target_matching import match_target
from forerun.core.tensors import torch
from forerun.errors import InvalidDistribution, InvalidSampling
from forerun.types import Draft, FloatArray, IntArray, SamplingParams, Verdict

WORKING_BYTES = 512 * 2**20
"""Memory bound of verification, beyond the logits and the drafts' q."""

_BYTES_PER_ENTRY = 4 * PREFETCH_ROWS * 7
"""Peak bytes per request and vocabulary entry: seven copies of the prefetched float32 rows.

The peak is a top-k close to the vocabulary size on rows that had to be gathered. A test measures it.
"""


class Method(Enum):
    """The four verifiers; lenient verification has a sampled and a greedy form."""

    MATCH = "match"
    REJECTION = "rejection"
    BLOCK = "block"
    LENIENT = "lenient"
    LENIENT_GREEDY = "lenient greedy"


@dataclass(frozen=True, slots=True, eq=False)
class VerifyRequest:
    """One request's input to a verification step.

    Attributes:
        draft: The draft to verify.
        sampling: The request's sampling settings.
        key: Noise key: the seed of a seeded request, otherwise a number private to the request.
        length: Number of committed tokens, prompt included, at the start of the step. Together with `key` it
            addresses the noise, so it must not repeat within a request.
        history: Prompt and output so far; needed only with penalties or bad words.
        lenience: 1 is lossless. Below 1 verification is lossy: no token becomes more than 1/lenience times
            as likely.
        can_block_verify: Whether a sampled chain may be verified jointly. Set it to False for drafts that
            merge sampled with chosen draft tokens: whether the merged draft is a chain depends on the sampled
            values, and the choice of the verifier must not depend on them.
    """

    draft: Draft
    sampling: SamplingParams
    key: int
    length: int
    history: TokenHistory = field(default_factory=TokenHistory)
    lenience: float = 1.0
    can_block_verify: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.lenience <= 1:
            raise InvalidSampling(f"lenience is {self.lenience}; it must be above 0 and at most 1")


def method_for(each: VerifyRequest, verifier: VerifierName = "auto") -> Method:
    """The verifier of a request; `verifier` selects the one for draft tokens sampled from a q.

    "auto" selects block verification for chains, which accepts more, and rejection sampling for trees.
    """
    if each.lenience < 1:
        return Method.LENIENT_GREEDY if each.sampling.greedy else Method.LENIENT
    sampling, draft = each.sampling, each.draft
    if sampling.greedy or sampling.seed is not None or verifier == "match" or not draft.sampled.any():
        return Method.MATCH
    if verifier == "rejection" or not each.can_block_verify or not draft.is_chain:
        return Method.REJECTION
    return Method.BLOCK


def verify(
    requests: Sequence[VerifyRequest], logits: torch.Tensor, verifier: VerifierName = "auto"
) -> list[Verdict]:
    """Verify the drafts of a batch and return one verdict per request.

    Every `verifier` is lossless at lenience 1: with these logits, greedy and seeded requests commit the
    tokens of non-speculative decoding, and other requests sample from the target's distribution p.

    Args:
        requests: The drafts with their sampling settings.
        logits: Target logits, request by request: one row for the last committed token, then one row per
            draft token. They are not modified.
        verifier: Verifier of draft tokens sampled from a q: "match", "rejection", "block" or "auto" (block
            for chains, rejection for trees).

    Raises:
        ConfigurationError: `verifier` is none of these.
        InvalidDistribution: The number of rows does not match the drafts, or a row is NaN or has no mass.
        InvalidDraft: A draft breaks the contract of `Draft`.
        VocabularyMismatch: A q has another vocabulary size than the logits.
    """
    verifier = current_verifier(verifier)
    sizes = np.array([len(each.draft) + 1 for each in requests], dtype=np.int64)
    if sizes.sum() != len(logits):
        raise InvalidDistribution(
            f"got {len(logits)} rows of logits, expected {sizes.sum()}: n draft tokens need n + 1 rows"
        )
    first_row = np.cumsum(sizes) - sizes
    verdicts: dict[int, Verdict] = {}
    for method, members in _by_method(requests, verifier).items():
        for part in _split_to_fit(members, logits.shape[1]):
            rows = np.concatenate([first_row[i] + np.arange(sizes[i]) for i in part])
            results = _verify_with(method, [requests[i] for i in part], logits, rows)
            verdicts |= zip(part, results, strict=True)
    return [verdicts[i] for i in range(len(requests))]


def _verify_with(
    method: Method, requests: Sequence[VerifyRequest], logits: torch.Tensor, logit_rows: IntArray
) -> list[Verdict]:
    """The verdicts of requests that share a verifier; `logit_rows` are their rows of the logits."""
    forest = Forest.pack([each.draft for each in requests])
    forest.check_vocabulary(logits.shape[1])
    target = TargetDistribution(
        logits=logits,
        logit_rows=logit_rows,
        forest=forest,
        settings=BatchSampling.of([each.sampling for each in requests]),
        keys=np.array([signed(each.key) for each in requests], dtype=np.int64),
        lengths=np.array([each.length for each in requests], dtype=np.int64),
        histories=[each.history for each in requests],
    )
    if method is Method.MATCH:
        return match_target(forest, TargetTokens(target))
    lenience = np.array([each.lenience for each in requests])
    if method is Method.LENIENT_GREEDY:
        return lenient_greedy(forest, UnwarpedTarget(target), lenience)
    u, v = verification_noise(target)
    if method is Method.LENIENT:
        return lenient(forest, target, u, v, lenience)
    return (block_verify if method is Method.BLOCK else rejection_sample)(forest, target, u, v)


def verification_noise(target: TargetDistribution) -> tuple[FloatArray, FloatArray]:
    """One uniform per draft token for its acceptance test, and one per request for its next token."""
    forest = target.forest
    rows = np.arange(forest.num_rows)
    owner = forest.request_of(rows)
    u = uniforms(target.keys[owner], Stream.ACCEPT, target.lengths[owner], rows - forest.roots[owner])
    v = uniforms(target.keys, Stream.NEXT_TOKEN, target.lengths, np.zeros_like(target.lengths))
    return u, v


def _by_method(requests: Sequence[VerifyRequest], verifier: VerifierName) -> dict[Method, list[int]]:
    """Indices of the requests of each verifier."""
    members: dict[Method, list[int]] = {}
    for i, each in enumerate(requests):
        members.setdefault(method_for(each, verifier), []).append(i)
    return members


def _split_to_fit(members: list[int], vocab_size: int) -> Iterator[list[int]]:
    """Split requests into parts whose verification fits into `WORKING_BYTES`."""
    max_requests = max(1, WORKING_BYTES // (_BYTES_PER_ENTRY * vocab_size))
    for first in range(0, len(members), max_requests):
        yield members[first : first + max_requests]
