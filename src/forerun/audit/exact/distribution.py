"""Equality of distributions when steps emit different numbers of tokens.

A step emits a sequence e with weight m(e); non-speculative decoding would continue from there with the
target. Every continuation s then has probability p(s) f(s), where f(s) is the sum of m(e) / p(e) over all e
that are prefixes of s. Speculation is lossless if and only if f is 1 on every sequence that the target can
emit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from forerun.audit.exact.toy_models import ExactDistribution, Prefix


@dataclass(frozen=True, slots=True)
class Comparison:
    """An emitted distribution compared with the target's: whether they are equal, and their distance."""

    equal: bool
    distance: Fraction


def compare(
    emitted: Mapping[Prefix, Fraction], p: Callable[[Prefix], ExactDistribution], prefix: Prefix = ()
) -> Comparison:
    """Total variation distance between the emitted tokens, continued by the target, and the target."""
    inner = {e[:n] for e in emitted for n in range(len(prefix), len(e))}
    outside = sum((m for e, m in emitted.items() if _sequence_probability(e, p, prefix) == 0), Fraction(0))
    leaves = _leaf_ratios(prefix, Fraction(1), Fraction(0), emitted, p, inner)
    distance = (sum((probability * abs(f - 1) for probability, f in leaves), Fraction(0)) + outside) / 2
    return Comparison(distance == 0 and sum(emitted.values()) == 1, distance)


def _leaf_ratios(
    prefix: Prefix,
    probability: Fraction,
    f: Fraction,
    emitted: Mapping[Prefix, Fraction],
    p: Callable[[Prefix], ExactDistribution],
    inner: set[Prefix],
) -> Iterator[tuple[Fraction, Fraction]]:
    """p(s) and f(s) for the sequences s after which nothing more was emitted."""
    f += emitted.get(prefix, Fraction(0)) / probability
    if prefix not in inner:
        yield probability, f
        return
    for token, p_x in enumerate(p(prefix)):
        if p_x:
            yield from _leaf_ratios((*prefix, token), probability * p_x, f, emitted, p, inner)


def _sequence_probability(
    sequence: Prefix, p: Callable[[Prefix], ExactDistribution], prefix: Prefix
) -> Fraction:
    """The target's probability of a sequence, given its prefix."""
    probability = Fraction(1)
    for n in range(len(prefix), len(sequence)):
        probability *= p(sequence[:n])[sequence[n]]
    return probability


def max_probability_ratio(
    emitted: Mapping[Prefix, Fraction], p: Callable[[Prefix], ExactDistribution]
) -> Fraction:
    """The largest ratio of a token's conditional probability in the output to its probability under p."""
    worst = Fraction(0)
    for prefix in {e[:n] for e in emitted for n in range(len(e))}:
        given = _prefix_probability(prefix, emitted, p)
        for token, p_x in enumerate(p(prefix)):
            joint = _prefix_probability((*prefix, token), emitted, p)
            if joint and not p_x:
                raise ValueError("the output contains a token of target probability 0")
            if joint:
                worst = max(worst, joint / given / p_x)
    return worst


def _prefix_probability(
    prefix: Prefix, emitted: Mapping[Prefix, Fraction], p: Callable[[Prefix], ExactDistribution]
) -> Fraction:
    """Probability that the emitted tokens, continued by the target, start with this prefix."""
    total = Fraction(0)
    for e, weight in emitted.items():
        if e[: len(prefix)] == prefix:
            total += weight
        elif prefix[: len(e)] == e:
            total += weight * _sequence_probability(prefix, p, e)
    return total
