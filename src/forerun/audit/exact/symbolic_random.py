"""Random numbers as symbols: comparing one splits the run, and each branch carries its exact weight.

A run is replayed once per outcome. Its `Branch` holds the choices to repeat; at the first new choice it
takes one side and notes the other for later. Symbols remember what earlier comparisons revealed, so noise
that is used twice gives the correlated outcomes it would give in reality.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

Number: TypeAlias = Fraction | int


@dataclass
class Branch:
    """One outcome of every random choice in a run, its weight, and the sides not taken."""

    script: tuple[bool, ...] = ()
    weight: Fraction = Fraction(1)
    taken: list[bool] = field(default_factory=list)
    others: list[tuple[bool, ...]] = field(default_factory=list)

    def choose(self, chance: Fraction) -> bool:
        """True with this chance; a certain outcome is no choice."""
        if chance <= 0 or chance >= 1:
            return chance >= 1
        if len(self.taken) < len(self.script):
            outcome = self.script[len(self.taken)]
        else:
            outcome = True
            self.others.append((*self.taken, False))
        self.taken.append(outcome)
        self.weight *= chance if outcome else 1 - chance
        return outcome


class Uniform:
    """A uniform number in [low, high): the part of [0, 1) that agrees with the comparisons so far."""

    __slots__ = ("branch", "high", "low")

    def __init__(self, branch: Branch, low: Fraction = Fraction(0), high: Fraction = Fraction(1)) -> None:
        self.branch, self.low, self.high = branch, low, high

    def below(self, threshold: Fraction) -> bool:
        """Whether it lies below the threshold; afterwards it is known to."""
        if threshold <= self.low or threshold >= self.high:
            return threshold >= self.high
        outcome = self.branch.choose((threshold - self.low) / (self.high - self.low))
        if outcome:
            self.high = threshold
        else:
            self.low = threshold
        return outcome

    def __mul__(self, factor: Number) -> Scaled:
        return Scaled(self, Fraction(factor))

    __rmul__ = __mul__

    def __lt__(self, other: Number) -> bool:
        return self.below(Fraction(other))


class Scaled:
    """A uniform number times a constant."""

    __slots__ = ("factor", "uniform")

    def __init__(self, uniform: Uniform, factor: Fraction) -> None:
        self.uniform, self.factor = uniform, factor

    def __mul__(self, factor: Number) -> Scaled:
        return Scaled(self.uniform, self.factor * factor)

    __rmul__ = __mul__

    def __lt__(self, other: Number) -> bool:
        return other > 0 if self.factor == 0 else self.uniform.below(Fraction(other) / self.factor)

    def __ge__(self, other: Number) -> bool:
        return not self < other

    __le__, __gt__ = __lt__, __ge__


class Clock:
    """An exponential time, known only through races: given that it rang first, it still is exponential.

    Its rate grows with every race won. The loser of a race is spent; asking it again is an error, since
    noise is used once.
    """

    __slots__ = ("branch", "rate")

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.rate: Fraction | None = Fraction(1)

    def __mul__(self, factor: Number) -> ScaledClock:
        return ScaledClock(self, Fraction(factor))


class ScaledClock:
    """A clock's time times a constant."""

    __slots__ = ("clock", "factor")

    def __init__(self, clock: Clock, factor: Fraction) -> None:
        self.clock, self.factor = clock, factor

    def __lt__(self, other: ScaledClock) -> bool:
        if self.clock.rate is None or other.clock.rate is None:
            raise ValueError("a clock that lost a race was asked again")
        mine, theirs = self.clock.rate / self.factor, other.clock.rate / other.factor
        wins = self.clock.branch.choose(mine / (mine + theirs))
        winner, loser = (self, other) if wins else (other, self)
        winner.clock.rate = (mine + theirs) * winner.factor
        loser.clock.rate = None
        return wins


def outcomes(run: Callable[[Branch], object]) -> Iterator[tuple[object, Fraction]]:
    """Every outcome of a run with its weight."""
    waiting: list[tuple[bool, ...]] = [()]
    while waiting:
        branch = Branch(waiting.pop())
        result = run(branch)
        waiting += branch.others
        yield result, branch.weight
