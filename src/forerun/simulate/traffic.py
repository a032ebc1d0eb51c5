"""Simulated traffic: arrivals, lengths and acceptance probabilities of requests."""

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


class _ScenarioPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Poisson(_ScenarioPart):
    """Independent arrivals at a constant rate."""

    kind: Literal["poisson"] = "poisson"
    rate: Positive

    def at(self, now: float) -> float:
        """Requests per second."""
        del now
        return self.rate

    def scaled(self, share: float) -> Poisson:
        """The same arrivals at a share of the rate."""
        return self.model_copy(update={"rate": share * self.rate})


class Daily(_ScenarioPart):
    """A sinusoidal swing between two rates, with a period in seconds."""

    kind: Literal["daily"]
    low: Positive
    high: Positive
    period: Positive = 86400.0

    def at(self, now: float) -> float:
        """Requests per second."""
        return self.low + (self.high - self.low) * 0.5 * (1 - math.cos(2 * math.pi * now / self.period))

    def scaled(self, share: float) -> Daily:
        """The same arrivals at a share of the rates."""
        return self.model_copy(update={"low": share * self.low, "high": share * self.high})


class Bursts(_ScenarioPart):
    """A base rate, and a burst rate for the last `length` of every `every` seconds."""

    kind: Literal["bursts"]
    rate: Positive
    burst: Positive
    every: Positive
    length: Positive

    def at(self, now: float) -> float:
        """Requests per second."""
        return self.burst if now % self.every >= self.every - self.length else self.rate

    def scaled(self, share: float) -> Bursts:
        """The same arrivals at a share of the rates."""
        return self.model_copy(update={"rate": share * self.rate, "burst": share * self.burst})


class Recorded(_ScenarioPart):
    """A file of arrivals: on every line `at` in seconds, and the tokens of `prompt` and `output`."""

    kind: Literal["trace"]
    file: Path

    def scaled(self, share: float) -> Recorded:
        """Recorded arrivals cannot be scaled."""
        if share != 1:
            raise ConfigurationError(
                "recorded arrivals cannot be scaled: omit --replicas, or use another kind"
            )
        return self


Arrivals = Annotated[Poisson | Daily | Bursts | Recorded, Field(discriminator="kind")]


class Length(_ScenarioPart):
    """Tokens: lognormal with this median, its standard deviation a factor of `spread`, at most `most`."""

    median: Positive
    spread: Annotated[float, Field(ge=1)] = 2.0
    most: int = 8192

    def sample(self, random: np.random.Generator) -> int:
        """Sample one length."""
        value = self.median * np.exp(np.log(self.spread) * random.standard_normal())
        return int(min(max(value, 1), self.most))


class Constant(_ScenarioPart):
    """Every draft token is accepted with one probability."""

    kind: Literal["constant"] = "constant"
    chance: Share


class Mixture(_ScenarioPart):
    """Each request has one of several acceptance probabilities."""

    kind: Literal["mixture"]
    chances: tuple[Share, ...]
    weights: tuple[Positive, ...]


class Repeats(_ScenarioPart):
    """Requests alternate between text that repeats earlier text and other text: acceptance probabilities
    inside and outside repeats, and mean segment lengths in tokens.
    """

    kind: Literal["repeats"]
    inside: Share = 0.95
    outside: Share = 0.2
    inside_tokens: Positive = 60
    outside_tokens: Positive = 60


class Shifting(_ScenarioPart):
    """The acceptance probability of new requests changes every `every` seconds."""

    kind: Literal["shifting"]
    chances: tuple[Share, ...]
    every: Positive


Acceptance = Annotated[Constant | Mixture | Repeats | Shifting, Field(discriminator="kind")]


@dataclass(slots=True)
class SimulatedRequest:
    """One request: arrival, lengths, and acceptance probability in the current and the other segment."""

    arrival: float
    prompt: int
    output: int
    acceptance: float
    other_acceptance: float = -1.0
    segment_tokens: tuple[float, float] = (0.0, 0.0)


def generate_requests(
    arrivals: Poisson | Daily | Bursts | Recorded,
    prompt: Length,
    output: Length,
    acceptance: Constant | Mixture | Repeats | Shifting,
    seconds: float,
    random: np.random.Generator,
) -> Iterator[SimulatedRequest]:
    """Requests in order of arrival."""
    for now, num_prompt, num_output in _arrivals(arrivals, prompt, output, seconds, random):
        request = SimulatedRequest(now, num_prompt, num_output, 0.0)
        _assign_acceptance(request, acceptance, random)
        yield request


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
    max_rate, now = max(rates) * 1.01, 0.0
    while True:
        now += random.exponential(1 / max_rate)
        if now >= seconds:
            return
        if random.random() * max_rate < arrivals.at(now):
            yield now, prompt.sample(random), output.sample(random)


def _recorded(file: Path, seconds: float) -> Iterator[tuple[float, int, int]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        rows = sorted(
            (float(row["at"]), max(int(row["prompt"]), 1), max(int(row["output"]), 1))
            for row in map(json.loads, lines)
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"cannot read arrivals from {file}: expected at, prompt and output on each JSON line ({error})"
        ) from error
    yield from (row for row in rows if row[0] < seconds)


def _assign_acceptance(
    request: SimulatedRequest,
    acceptance: Constant | Mixture | Repeats | Shifting,
    random: np.random.Generator,
) -> None:
    """Set the acceptance probability of a request."""
    if isinstance(acceptance, Constant):
        request.acceptance = acceptance.chance
    elif isinstance(acceptance, Mixture):
        weights = np.array(acceptance.weights)
        request.acceptance = acceptance.chances[int(random.choice(len(weights), p=weights / weights.sum()))]
    elif isinstance(acceptance, Repeats):
        inside = random.random() < acceptance.inside_tokens / (
            acceptance.inside_tokens + acceptance.outside_tokens
        )
        probabilities = (acceptance.inside, acceptance.outside)
        lengths = (acceptance.inside_tokens, acceptance.outside_tokens)
        request.acceptance, request.other_acceptance = probabilities if inside else probabilities[::-1]
        request.segment_tokens = lengths if inside else lengths[::-1]
    else:
        request.acceptance = acceptance.chances[
            int(request.arrival / acceptance.every) % len(acceptance.chances)
        ]
