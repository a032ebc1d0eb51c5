"""Bounds on distances hold at their error rate, and are not much wider than necessary."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom

from forerun.audit.sampled.distance import (
    bound_schedule,
    distance_between_counts,
    distance_to_distribution,
    samples_to_bound,
    slack,
    tokens_to_detect,
    two_sample_slack,
)


def test_distances_include_outcomes_that_did_not_occur() -> None:
    assert distance_to_distribution(Counter(a=1), {"a": 0.25}) == pytest.approx(0.75)
    assert distance_to_distribution(Counter(a=1, b=3), {"a": 0.25, "b": 0.75}) == 0
    assert distance_between_counts(Counter(a=1), Counter(b=7)) == 1
    assert distance_to_distribution(Counter(), {}) == 1


@pytest.mark.parametrize("share", [0.1, 0.37, 0.5, 0.9])
def test_the_slack_covers_the_binomial_tail_of_every_set(share: float) -> None:
    for num in (50, 1000):
        for rate in (0.05, 0.001):
            margin = slack(rate, num)
            assert binom.cdf(np.ceil((share - margin) * num) - 1, num, share) <= rate


def test_a_smaller_slack_does_not_cover_the_binomial_tail() -> None:
    margin = 0.9 * slack(0.05, 1000)
    assert binom.cdf(np.ceil((0.5 - margin) * 1000) - 1, 1000, 0.5) > 0.05


def test_the_bound_covers_the_true_distance_at_its_error_rate() -> None:
    """Seeded; the number of misses is tested by its binomial quantile at 0.999."""
    p, q = np.full(8, 1 / 8), np.array([0.2, 0.2, 0.15, 0.15, 0.1, 0.1, 0.05, 0.05])
    true = np.abs(p - q).sum() / 2
    noise = np.random.default_rng(0)
    expected = dict(enumerate(p.tolist()))
    missed = 0
    for _ in range(400):
        counts = Counter(noise.choice(8, size=300, p=q).tolist())
        missed += distance_to_distribution(counts, expected) + slack(0.05, 300) < true
    assert missed <= binom.ppf(0.999, 400, 0.05)


def test_the_two_sample_bound_covers_the_true_distance_at_its_error_rate() -> None:
    noise = np.random.default_rng(1)
    p, q = np.full(4, 0.25), np.array([0.4, 0.3, 0.2, 0.1])
    missed = 0
    for _ in range(400):
        one, other = (Counter(noise.choice(4, size=200, p=each).tolist()) for each in (p, q))
        missed += distance_between_counts(one, other) + two_sample_slack(0.05, 200, 200) < 0.2
    assert missed <= binom.ppf(0.999, 400, 0.05)


def test_scheduled_bounds_spend_the_error_rate_once() -> None:
    for planned in (16, 256, 5000):
        spent = bound_schedule(0.05, planned)
        assert planned in spent
        assert sum(spent.values()) <= 0.05 + 1e-12


def test_the_planned_number_of_samples_reaches_the_target_bound() -> None:
    probabilities = np.full(64, 1 / 64)
    num = samples_to_bound(probabilities, 0.05, 0.05)
    noise = np.random.default_rng(2)
    expected = dict(enumerate(probabilities.tolist()))
    met = 0
    for _ in range(50):
        counts = Counter(noise.choice(64, size=num, p=probabilities).tolist())
        met += distance_to_distribution(counts, expected) + slack(0.05 * 0.9, num) <= 0.05
    assert met >= 45
    assert num < 1.6 * samples_to_bound(probabilities, 0.06, 0.05)


def test_a_bias_within_rounding_cannot_be_detected() -> None:
    assert tokens_to_detect(0.01, 0.02, 0.05, 10) is None
    few, many = (tokens_to_detect(bias, 0.001, 0.05, 10) for bias in (0.05, 0.01))
    assert few is not None
    assert many is not None
    assert 20 < many / few < 40
