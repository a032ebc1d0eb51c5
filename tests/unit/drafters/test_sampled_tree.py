"""Sampled trees: their shapes, the distribution of their siblings, and what is learnt from verdicts."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from forerun.drafters.sampled_tree import (
    MAX_SIBLINGS,
    SampledTree,
    SiblingRates,
    sample_without_replacement,
    tree_shape,
)
from forerun.types import ROOT, Draft, Verdict


def padded(*probs: float) -> np.ndarray:
    return np.array([*probs, *[1e-9] * (MAX_SIBLINGS - len(probs))])


def test_the_shape_has_the_likeliest_nodes_level_by_level() -> None:
    parents, survival = tree_shape(5, padded(0.5, 0.3, 0.1))
    # 0.5, 0.3 below the root; 0.25 and 0.15 below the first; 0.15 below the second
    assert parents == [ROOT, ROOT, 0, 0, 1]
    assert survival == pytest.approx([0.5, 0.3, 0.25, 0.15, 0.15])


def test_a_draft_that_is_always_accepted_is_a_chain() -> None:
    assert tree_shape(4, padded(0.99, 0.005))[0] == [ROOT, 0, 1, 2]


@pytest.mark.parametrize("num_nodes", range(1, 20))
def test_shapes_are_trees_of_the_wanted_size_whose_first_nodes_lose_nothing(num_nodes: int) -> None:
    parents, survival = tree_shape(num_nodes, SiblingRates().probs)
    assert len(parents) == num_nodes
    assert all(parent < node for node, parent in enumerate(parents))
    assert sum(survival) >= sum(SiblingRates().probs[0] ** k for k in range(1, num_nodes + 1)) - 1e-9


def test_siblings_are_sampled_without_replacement() -> None:
    """20,000 pairs from one distribution, by chi-square over ordered pairs; false alarm rate 1e-6."""
    q = torch.tensor([0.5, 0.25, 0.2, 0.05])
    num = 20_000
    rng = np.random.default_rng(5)
    pairs = sample_without_replacement(q.expand(num, -1), np.full(num, 2), rng)
    counts = Counter(map(tuple, pairs.tolist()))
    expected = {(x, y): float(q[x] * q[y] / (1 - q[x])) for x, y in permutations(range(4), 2)}
    assert counts.keys() <= expected.keys()
    found = [counts[pair] for pair in expected]
    assert chisquare(found, [num * each for each in expected.values()]).pvalue > 1e-6
    with_replacement = [num * float(q[x] * q[y]) / (1 - float((q**2).sum())) for x, y in expected]
    assert chisquare(found, with_replacement).pvalue < 1e-6


def test_a_distribution_with_few_tokens_has_few_children() -> None:
    rng = np.random.default_rng(0)
    tree = SampledTree([ROOT, ROOT, ROOT, 0, 1, 2], [0.5, 0.3, 0.1, 0.2, 0.1, 0.05], rng)
    tree.grow(torch.tensor([[0.0, 0.6, 0.4, 0.0]]))
    assert tree.frontier == [0, 1]
    tokens, parents = tree.next_rows()
    assert sorted(tokens) == [1, 2]
    assert parents == [-1, -1] or len(set(parents)) == 1
    tree.grow(torch.tensor([[0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]]))
    draft = tree.draft("model")
    draft.check(4)
    assert draft.parents.tolist() == [ROOT, ROOT, 0, 1]
    assert draft.tokens.tolist()[2:] == [3, 0]
    assert tree.frontier == []
    proposals = draft.proposals_of_nodes()
    assert proposals[0] is proposals[1]
    assert not proposals[0].replacement


def test_rates_count_the_siblings_that_were_tested() -> None:
    rates = SiblingRates()
    draft = Draft(np.array([1, 2, 3, 4]), np.array([ROOT, ROOT, ROOT, 1]), np.ones(4, dtype=bool), q={})
    for _ in range(2000):
        rates.learn(draft, Verdict((1,), 9))  # the second sibling, whose child is rejected
    conditional = rates.probs / np.cumprod(np.append(1.0, 1.0 - _rates(rates)[:-1]))
    assert conditional[1] > 0.95
    assert conditional[0] < 0.02
    assert tree_shape(3, rates.probs)[0][:2] == [ROOT, ROOT]


def _rates(rates: SiblingRates) -> np.ndarray:
    return rates._accepted / rates._offered
