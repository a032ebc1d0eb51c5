"""Who comes when, with how long a text, and how well its tokens can be guessed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from forerun.errors import ConfigurationError

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Poisson(_Part):
    """Requests that know nothing of each other."""

    kind: Literal["poisson"] = "poisson"
    rate: Positive

    def at(self, now: float) -> float:
        """Requests per second."""
        del now
        return self.rate

    def scaled(self, share: float) -> Poisson:
        """A share of them."""
        return self.model_copy(update={"rate": share * self.rate})


class Daily(_Part):
    """A day's swing between two rates, in a period of so many seconds."""

    kind: Literal["daily"]
    low: Positive
    high: Positive
    period: Positive = 86400.0

    def at(self, now: float) -> float:
        """Requests per second."""
        return self.low + (self.high - self.low) * 0.5 * (1 - math.cos(2 * math.pi * now / self.period))

    def scaled(self, share: float) -> Daily:
        """A share of them."""
        return self.model_copy(update={"low": share * self.low, "high": share * self.high})


class Bursts(_Part):
    """A rate, and every so often another for a while."""

    kind: Literal["bursts"]
    rate: Positive
    burst: Positive
    every: Positive
    length: Positive

    def at(self, now: float) -> float:
        """Requests per second."""
        return self.burst if now % self.every >= self.every - self.length else self.rate

    def scaled(self, share: float) -> Bursts:
        """A share of them."""
        return self.model_copy(update={"rate": share * self.rate, "burst": share * self.burst})


class Recorded(_Part):
    """A file of arrivals: on every line `at` in seconds, and the tokens of `prompt` and `output`."""

    kind: Literal["trace"]
    file: Path

    def scaled(self, share: float) -> Recorded:
        """Recordings are played as they are."""
        if share != 1:
            raise ConfigurationError("a recording has no rate: it cannot be shared out")
        return self


Arrivals = Annotated[Poisson | Daily | Bursts | Recorded, Field(discriminator="kind")]


class Length(_Part):
    """Tokens: lognormal around a median, with a spread of so many times up or down."""

    median: Positive
    spread: Annotated[float, Field(ge=1)] = 2.0
    most: int = 8192

    def draw(self, random: np.random.Generator) -> int:
        """One of them."""
        value = self.median * np.exp(np.log(self.spread) * random.standard_normal())
        return int(min(max(value, 1), self.most))


class Constant(_Part):
    """Every guess stands with one chance."""

    kind: Literal["constant"] = "constant"
    chance: Share


class Mixture(_Part):
    """Requests are of several sorts, each with its chance."""

    kind: Literal["mixture"]
    chances: tuple[Share, ...]
    weights: tuple[Positive, ...]


class Repeats(_Part):
    """Within a request, stretches that repeat what was said before and stretches that do not: chances in and
    out of a repeat, and the mean length of both in tokens.
    """

    kind: Literal["repeats"]
    inside: Share = 0.95
    outside: Share = 0.2
    inside_tokens: Positive = 60
    outside_tokens: Positive = 60


class Shifting(_Part):
    """Every so many seconds requests of another sort come, with the next chance."""

    kind: Literal["shifting"]
    chances: tuple[Share, ...]
    every: Positive


Acceptance = Annotated[Constant | Mixture | Repeats | Shifting, Field(discriminator="kind")]


@dataclass(slots=True)
class SimulatedRequest:
    """One request: when it comes, its tokens, the chance of its guesses now and elsewhere in its text."""

    arrival: float
    prompt: int
    output: int
    chance: float
    other: float = -1.0
    stretch: tuple[float, float] = (0.0, 0.0)


def visits(
    arrivals: Poisson | Daily | Bursts | Recorded,
    prompt: Length,
    output: Length,
    acceptance: Constant | Mixture | Repeats | Shifting,
    seconds: float,
    random: np.random.Generator,
) -> Iterator[SimulatedRequest]:
    """Requests in the order in which they come."""
    for now, num_prompt, num_output in _arrivals(arrivals, prompt, output, seconds, random):
        visit = SimulatedRequest(now, num_prompt, num_output, 0.0)
        _endow(visit, acceptance, random)
        yield visit


def _arrivals(
    arrivals: Poisson | Daily | Bursts | Recorded,
    prompt: Length,
    output: Length,
    seconds: float,
    random: np.random.Generator,
) -> Iterator[tuple[float, int, int]]:
    if isinstance(arrivals, Recorded):
        yield from _recorded(arrivals.file, seconds)
        return
    rates = [arrivals.at(now) for now in np.linspace(0, seconds, 1000)]
    most, now = max(rates) * 1.01, 0.0
    while True:
        now += random.exponential(1 / most)
        if now >= seconds:
            return
        if random.random() * most < arrivals.at(now):
            yield now, prompt.draw(random), output.draw(random)


def _recorded(file: Path, seconds: float) -> Iterator[tuple[float, int, int]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        rows = sorted(
            (float(row["at"]), max(int(row["prompt"]), 1), max(int(row["output"]), 1))
            for row in map(json.loads, lines)
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"cannot read arrivals from {file}: each line is an object with at, prompt and output ({error})"
        ) from error
    yield from (row for row in rows if row[0] < seconds)


def _endow(
    visit: SimulatedRequest, acceptance: Constant | Mixture | Repeats | Shifting, random: np.random.Generator
) -> None:
    """Give a request the chance of its guesses."""
    if isinstance(acceptance, Constant):
        visit.chance = acceptance.chance
    elif isinstance(acceptance, Mixture):
        weights = np.array(acceptance.weights)
        visit.chance = acceptance.chances[int(random.choice(len(weights), p=weights / weights.sum()))]
    elif isinstance(acceptance, Repeats):
        inside = random.random() < acceptance.inside_tokens / (
            acceptance.inside_tokens + acceptance.outside_tokens
        )
        chances = (acceptance.inside, acceptance.outside)
        lengths = (acceptance.inside_tokens, acceptance.outside_tokens)
        visit.chance, visit.other = chances if inside else chances[::-1]
        visit.stretch = lengths if inside else lengths[::-1]
    else:
        visit.chance = acceptance.chances[int(visit.arrival / acceptance.every) % len(acceptance.chances)]
