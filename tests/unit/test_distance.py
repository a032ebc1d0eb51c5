"""Bounds on distances hold as often as they say, and are not much wider than they must be."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom

from forerun.audit.sampled.distance import (
    distance_of_counts,
    distance_to_law,
    looks,
    samples_to_bound,
    samples_to_catch,
    slack,
    slack_of_two,
)


def test_distances_count_what_was_not_seen() -> None:
    assert distance_to_law(Counter(a=1), {"a": 0.25}) == pytest.approx(0.75)
    assert distance_to_law(Counter(a=1, b=3), {"a": 0.25, "b": 0.75}) == 0
    assert distance_of_counts(Counter(a=1), Counter(b=7)) == 1
    assert distance_to_law(Counter(), {}) == 1


@pytest.mark.parametrize("share", [0.1, 0.37, 0.5, 0.9])
def test_the_slack_covers_the_binomial_tail_of_every_set(share: float) -> None:
    for num in (50, 1000):
        for rate in (0.05, 0.001):
            room = slack(rate, num)
            assert binom.cdf(np.ceil((share - room) * num) - 1, num, share) <= rate


def test_less_slack_would_be_caught() -> None:
    room = 0.9 * slack(0.05, 1000)
    assert binom.cdf(np.ceil((0.5 - room) * 1000) - 1, 1000, 0.5) > 0.05


def test_a_law_that_far_away_is_seen_that_far_away() -> None:
    """Seeded: the bound is below the true distance at most at the error rate (binomial, at 0.999)."""
    p, q = np.full(8, 1 / 8), np.array([0.2, 0.2, 0.15, 0.15, 0.1, 0.1, 0.05, 0.05])
    true = np.abs(p - q).sum() / 2
    noise = np.random.default_rng(0)
    law = dict(enumerate(p.tolist()))
    missed = 0
    for _ in range(400):
        seen = Counter(noise.choice(8, size=300, p=q).tolist())
        missed += distance_to_law(seen, law) + slack(0.05, 300) < true
    assert missed <= binom.ppf(0.999, 400, 0.05)


def test_two_sets_of_samples_bound_each_other() -> None:
    noise = np.random.default_rng(1)
    p, q = np.full(4, 0.25), np.array([0.4, 0.3, 0.2, 0.1])
    missed = 0
    for _ in range(400):
        one, other = (Counter(noise.choice(4, size=200, p=law).tolist()) for law in (p, q))
        missed += distance_of_counts(one, other) + slack_of_two(0.05, 200, 200) < 0.2
    assert missed <= binom.ppf(0.999, 400, 0.05)


def test_looks_spend_the_error_rate_once() -> None:
    for planned in (16, 256, 5000):
        spent = looks(0.05, planned)
        assert planned in spent
        assert sum(spent.values()) <= 0.05 + 1e-12


def test_as_many_samples_are_planned_as_a_bound_takes() -> None:
    chances = np.full(64, 1 / 64)
    num = samples_to_bound(chances, 0.05, 0.05)
    noise = np.random.default_rng(2)
    law = dict(enumerate(chances.tolist()))
    met = 0
    for _ in range(50):
        seen = Counter(noise.choice(64, size=num, p=chances).tolist())
        met += distance_to_law(seen, law) + slack(0.05 * 0.9, num) <= 0.05
    assert met >= 45
    assert num < 1.6 * samples_to_bound(chances, 0.06, 0.05)


def test_a_bias_within_rounding_cannot_be_caught() -> None:
    assert samples_to_catch(0.01, 0.02, 0.05, 10) is None
    few, many = (samples_to_catch(bias, 0.001, 0.05, 10) for bias in (0.05, 0.01))
    assert few is not None
    assert many is not None
    assert 20 < many / few < 40
