"""Symbolic random numbers: a comparison splits the run, and each branch carries its exact weight.

A run is repeated once per outcome. Its `Branch` holds the choices to replay; at the first new choice it takes
one side and records the other for later. Symbols remember the result of earlier comparisons, so noise that is
used twice gives correlated outcomes, as it would in reality.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

Number: TypeAlias = Fraction | int


@dataclass
class Branch:
    """One outcome of every random choice in a run, its weight, and the sides not yet explored."""

    script: tuple[bool, ...] = ()
    weight: Fraction = Fraction(1)
    choices: list[bool] = field(default_factory=list)
    unexplored: list[tuple[bool, ...]] = field(default_factory=list)

    def choose(self, probability: Fraction) -> bool:
        """True with this probability; a certain outcome is not a choice."""
        if probability <= 0 or probability >= 1:
            return probability >= 1
        if len(self.choices) < len(self.script):
            outcome = self.script[len(self.choices)]
        else:
            outcome = True
            self.unexplored.append((*self.choices, False))
        self.choices.append(outcome)
        self.weight *= probability if outcome else 1 - probability
        return outcome


class Uniform:
    """A uniform number in [low, high): the part of [0, 1) that is consistent with earlier comparisons."""

    __slots__ = ("branch", "high", "low")

    def __init__(self, branch: Branch, low: Fraction = Fraction(0), high: Fraction = Fraction(1)) -> None:
        self.branch, self.low, self.high = branch, low, high

    def below(self, threshold: Fraction) -> bool:
        """Whether it lies below the threshold; narrows the interval accordingly."""
        if threshold <= self.low or threshold >= self.high:
            return threshold >= self.high
        outcome = self.branch.choose((threshold - self.low) / (self.high - self.low))
        if outcome:
            self.high = threshold
        else:
            self.low = threshold
        return outcome

    def __mul__(self, factor: Number) -> ScaledUniform:
        return ScaledUniform(self, Fraction(factor))

    __rmul__ = __mul__

    def __lt__(self, other: Number) -> bool:
        return self.below(Fraction(other))


class ScaledUniform:
    """A uniform number times a constant."""

    __slots__ = ("factor", "uniform")

    def __init__(self, uniform: Uniform, factor: Fraction) -> None:
        self.uniform, self.factor = uniform, factor

    def __mul__(self, factor: Number) -> ScaledUniform:
        return ScaledUniform(self.uniform, self.factor * factor)

    __rmul__ = __mul__

    def __lt__(self, other: Number) -> bool:
        return other > 0 if self.factor == 0 else self.uniform.below(Fraction(other) / self.factor)

    def __ge__(self, other: Number) -> bool:
        return not self < other

    __le__, __gt__ = __lt__, __ge__


class Clock:
    """An exponential variate, known only through races: given that it was smaller, it is still exponential.

    Its rate grows with every race won. The loser of a race is spent; comparing it again is an error, since
    noise is used once.
    """

    __slots__ = ("branch", "rate")

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.rate: Fraction | None = Fraction(1)

    def __mul__(self, factor: Number) -> ScaledClock:
        return ScaledClock(self, Fraction(factor))


class ScaledClock:
    """A clock times a constant."""

    __slots__ = ("clock", "factor")

    def __init__(self, clock: Clock, factor: Fraction) -> None:
        self.clock, self.factor = clock, factor

    def __lt__(self, other: ScaledClock) -> bool:
        if self.clock.rate is None or other.clock.rate is None:
            raise ValueError("a clock that lost a race was compared again")
        own_rate, other_rate = self.clock.rate / self.factor, other.clock.rate / other.factor
        wins = self.clock.branch.choose(own_rate / (own_rate + other_rate))
        winner, loser = (self, other) if wins else (other, self)
        winner.clock.rate = (own_rate + other_rate) * winner.factor
        loser.clock.rate = None
        return wins


def outcomes(run: Callable[[Branch], object]) -> Iterator[tuple[object, Fraction]]:
    """Every outcome of a run with its weight."""
    pending: list[tuple[bool, ...]] = [()]
    while pending:
        branch = Branch(pending.pop())
        result = run(branch)
        pending += branch.unexplored
        yield result, branch.weight
