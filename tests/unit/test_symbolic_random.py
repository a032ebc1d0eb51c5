from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import pytest

from forerun.audit.exact.distribution import compare, max_probability_ratio
from forerun.audit.exact.symbolic_random import Branch, Clock, Uniform, outcomes


def distribution_of(run: object) -> dict[object, Fraction]:
    distribution: dict[object, Fraction] = defaultdict(Fraction)
    for result, weight in outcomes(run):  # type: ignore[arg-type]
        distribution[result] += weight
    return dict(distribution)


def test_a_uniform_is_below_a_threshold_with_probability_equal_to_it() -> None:
    assert distribution_of(lambda branch: Uniform(branch) < Fraction(1, 3)) == {
        True: Fraction(1, 3),
        False: Fraction(2, 3),
    }


def test_a_uniform_remembers_earlier_comparisons() -> None:
    def twice(branch: Branch) -> tuple[bool, bool]:
        u = Uniform(branch)
        return u * 2 < Fraction(1), u * 4 < Fraction(1)

    assert distribution_of(twice) == {
        (True, True): Fraction(1, 4),
        (True, False): Fraction(1, 4),
        (False, False): Fraction(1, 2),
    }


def test_two_uniforms_are_independent() -> None:
    half = Fraction(1, 2)
    distribution = distribution_of(lambda branch: (Uniform(branch) < half, Uniform(branch) < half))
    assert set(distribution.values()) == {Fraction(1, 4)}


def test_comparisons_work_from_both_sides() -> None:
    third = Fraction(1, 3)
    assert distribution_of(lambda branch: third <= Uniform(branch) * 1)[True] == Fraction(2, 3)
    assert distribution_of(lambda branch: third > Uniform(branch) * 1)[True] == Fraction(1, 3)
    assert distribution_of(lambda branch: Uniform(branch) * 0 < third) == {True: 1}


def test_comparing_a_clock_that_lost_again_raises() -> None:
    def again(branch: Branch) -> bool:
        one, two = Clock(branch), Clock(branch)
        first = one * 1 < two * 1
        loser = two if first else one
        return loser * 1 < Clock(branch) * 1

    with pytest.raises(ValueError, match="compared again"):
        distribution_of(again)


def test_outputs_of_different_lengths_are_compared_by_their_continuations() -> None:
    half = Fraction(1, 2)

    def fair(prefix: tuple[int, ...]) -> tuple[Fraction, ...]:
        return (half, half)

    assert compare({(0,): half, (1, 0): Fraction(1, 4), (1, 1): Fraction(1, 4)}, fair).equal
    skewed = compare({(0,): half, (1, 0): half}, fair)
    assert not skewed.equal
    assert skewed.distance == Fraction(1, 4)


def test_tokens_of_target_probability_zero_count_as_distance() -> None:
    def certain(prefix: tuple[int, ...]) -> tuple[Fraction, ...]:
        return (Fraction(1), Fraction(0))

    broken = compare({(0,): Fraction(3, 4), (1,): Fraction(1, 4)}, certain)
    assert not broken.equal
    assert broken.distance == Fraction(1, 4)
    with pytest.raises(ValueError, match="target probability 0"):
        max_probability_ratio({(1,): Fraction(1)}, certain)


def test_an_output_that_loses_weight_is_not_equal() -> None:
    assert not compare({(0,): Fraction(1, 2)}, lambda prefix: (Fraction(1),)).equal
