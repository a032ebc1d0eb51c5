"""Accepted lengths of the production verifiers against `coupled_matches` and `expected_accepted_along`.

p and q are tables of the previous token over four tokens, so the expected accepted length of a chain is a sum
over all its paths. Sizes, seeds and error rates are fixed: four standard errors, a false alarm in 16,000.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from forerun.core import theory
from forerun.core.exponential_race import exponential_race_rows
from forerun.core.verify import VerifyRequest, verify
from forerun.types import Draft, FloatArray, Proposal, SamplingParams

VOCAB, LENGTH, REQUESTS = 4, 3, 4_000
FIRST = 1
"""The token before the draft."""

P, Q = (
    torch.softmax(1.5 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)), -1)
    for seed in (1, 2)
)

Terms = Callable[[FloatArray, FloatArray], FloatArray]


def expected_length(terms: Terms) -> float:
    """The expected accepted length: the target's paths, weighted by their probability."""
    p, q = P.double().numpy(), Q.double().numpy()
    total = 0.0
    for path in itertools.product(range(VOCAB), repeat=LENGTH):
        pairs = list(itertools.pairwise((FIRST, *path)))
        factors = [float(terms(p[before], q[before])[x] / p[before, x]) for before, x in pairs]
        weight = float(np.prod([p[before, x] for before, x in pairs]))
        total += weight * theory.expected_accepted_along(factors, LENGTH)[0]
    return total


def draft_tokens(key_offset: int) -> np.ndarray:
    """Chains sampled from q at positions 1 and up, with the target's noise shifted by `key_offset`."""
    before, tokens = np.full(REQUESTS, FIRST), []
    for depth in range(LENGTH):
        keys = np.arange(REQUESTS) + key_offset
        before = exponential_race_rows(Q[before].contiguous(), keys, np.full(REQUESTS, 1 + depth))
        tokens.append(before)
    return np.stack(tokens, axis=1)


def accepted_lengths(chains: np.ndarray, *, seeded: bool) -> np.ndarray:
    """Accepted draft tokens of each chain: seeded chains by `match_target`, others by `rejection_sample`."""
    requests, rows = [], []
    for number, chain in enumerate(chains.tolist()):
        context = [FIRST, *chain]
        q = () if seeded else [Proposal(Q[before]) for before in context[:-1]]
        sampling = SamplingParams(seed=number if seeded else None)
        requests.append(VerifyRequest(Draft.chain(chain, q=q), sampling, number, 1))
        rows.append(P[context].log())
    verdicts = verify(requests, torch.cat(rows), "rejection")
    return np.array([len(each.accepted) for each in verdicts])


def within_error(lengths: np.ndarray, expected: float) -> bool:
    return bool(abs(lengths.mean() - expected) <= 4 * lengths.std() / np.sqrt(len(lengths)))


def overlap(p: FloatArray, q: FloatArray) -> FloatArray:
    return np.minimum(p, q)


def product(p: FloatArray, q: FloatArray) -> FloatArray:
    return p * q


PRIVATE_NOISE = 1 << 40


@pytest.mark.parametrize(
    ("key_offset", "seeded", "terms"),
    [
        pytest.param(0, True, theory.coupled_matches, id="coupled"),
        pytest.param(PRIVATE_NOISE, True, product, id="independent"),
        pytest.param(PRIVATE_NOISE, False, overlap, id="rejection"),
    ],
)
def test_the_accepted_length_equals_its_expectation(key_offset: int, seeded: bool, terms: Terms) -> None:
    lengths = accepted_lengths(draft_tokens(key_offset), seeded=seeded)
    assert within_error(lengths, expected_length(terms))


def test_the_comparison_detects_salted_noise() -> None:
    """The sabotaged twin: chains with other noise than the target's, against the coupled expectation."""
    lengths = accepted_lengths(draft_tokens(PRIVATE_NOISE), seeded=True)
    assert not within_error(lengths, expected_length(theory.coupled_matches))


def test_starts_with_fewer_tokens_left_than_the_draft_has_are_omitted() -> None:
    assert theory.expected_accepted_along([0.5, 0.5, 1.0], 2) == [0.75, 1.0]
    assert theory.expected_accepted_along([0.5], 2) == []
