"""What equality of laws means when rounds emit different numbers of tokens.

A round emits a sequence e with weight m(e); plain decoding would go on from there with the target. Every
continuation s then has probability p(s) f(s), where f(s) is the sum of m(e) / p(e) over the e that s starts
with. Speculation is lossless if and only if f is 1 on every sequence the target can say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from forerun.audit.exact.toy_models import ExactDistribution, Prefix


@dataclass(frozen=True, slots=True)
class Comparison:
    """An emitted law against the target's: are they equal, and how far apart if not."""

    equal: bool
    distance: Fraction
    num_sequences: int


def compare(
    emitted: Mapping[Prefix, Fraction], p: Callable[[Prefix], ExactDistribution], begin: Prefix = ()
) -> Comparison:
    """The total variation distance between what was emitted, continued by the target, and the target."""
    inner = {e[:n] for e in emitted for n in range(len(begin), len(e))}
    outside = sum((m for e, m in emitted.items() if _chance(e, p, begin) == 0), Fraction(0))
    gaps = [(chance, f) for chance, f in _ends(begin, Fraction(1), Fraction(0), emitted, p, inner)]
    distance = (sum((chance * abs(f - 1) for chance, f in gaps), Fraction(0)) + outside) / 2
    return Comparison(distance == 0 and sum(emitted.values()) == 1, distance, len(emitted))


def _ends(
    prefix: Prefix,
    chance: Fraction,
    f: Fraction,
    emitted: Mapping[Prefix, Fraction],
    p: Callable[[Prefix], ExactDistribution],
    inner: set[Prefix],
) -> Iterator[tuple[Fraction, Fraction]]:
    """p(s) and f(s) for the sequences s after which nothing more was emitted."""
    f += emitted.get(prefix, Fraction(0)) / chance
    if prefix not in inner:
        yield chance, f
        return
    for token, p_x in enumerate(p(prefix)):
        if p_x:
            yield from _ends((*prefix, token), chance * p_x, f, emitted, p, inner)


def _chance(sequence: Prefix, p: Callable[[Prefix], ExactDistribution], begin: Prefix) -> Fraction:
    """The target's probability of a sequence, given how it begins."""
    chance = Fraction(1)
    for n in range(len(begin), len(sequence)):
        chance *= p(sequence[:n])[sequence[n]]
    return chance


def most_overstated(emitted: Mapping[Prefix, Fraction], p: Callable[[Prefix], ExactDistribution]) -> Fraction:
    """The largest ratio between how likely a token became after those before it, and how it should be."""
    worst = Fraction(0)
    for prefix in {e[:n] for e in emitted for n in range(len(e))}:
        said = _probability(prefix, emitted, p)
        for token, p_x in enumerate(p(prefix)):
            more = _probability((*prefix, token), emitted, p)
            if more and not p_x:
                raise ValueError("a token was said that the target never says")
            if more:
                worst = max(worst, more / said / p_x)
    return worst


def _probability(
    prefix: Prefix, emitted: Mapping[Prefix, Fraction], p: Callable[[Prefix], ExactDistribution]
) -> Fraction:
    """How likely the text, continued by the target, begins like this."""
    total = Fraction(0)
    for e, weight in emitted.items():
        if e[: len(prefix)] == prefix:
            total += weight
        elif prefix[: len(e)] == e:
            total += weight * _chance(prefix, p, e)
    return total
