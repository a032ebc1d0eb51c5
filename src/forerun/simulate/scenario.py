"""A scenario: machines, requests and who decides, read from YAML; and what becomes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forerun.errors import ConfigurationError
from forerun.simulate.fleet import Outcome, serve
from forerun.simulate.hardware import Roofline
from forerun.simulate.policies import ControllerPolicy, FixedLengthPolicy, Policy, profiled
from forerun.simulate.replica import Replica
from forerun.simulate.traffic import Acceptance, Arrivals, Length, Poisson, Positive, Recorded, visits
from forerun.types import FloatArray

PLAIN, FIXED, OURS = "plain", "fixed", "forerun"

QUEUE: Final = 4
"""Requests that may wait for a place in a machine that keeps up."""

DOUBLINGS: Final = 12
"""Halvings of the interval in which the load that a machine bears is searched."""


class Scenario(BaseModel):
    """What is simulated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    about: str = ""
    device: str
    devices_per_replica: Annotated[int, Field(ge=1)] = 1
    model: str
    replicas: Annotated[int, Field(ge=1)] = 1
    max_batch: Annotated[int, Field(ge=1)] = 128
    arrivals: Arrivals
    prompt: Length
    output: Length
    acceptance: Acceptance
    max_draft: Annotated[int, Field(ge=1, le=64)] = 16
    fixed_draft: Annotated[int, Field(ge=1, le=64)] = Field(
        default=4, description="what a fixed length is set to, for comparison"
    )
    token_seconds: Positive | None = Field(
        default=None, description="seconds between two tokens that users are promised, at the 99th percentile"
    )
    seconds: Positive = 60.0
    seed: int = 0

    @classmethod
    def read(cls, given: str | Path) -> Scenario:
        """From a file, or one that comes with forerun by its name."""
        bundled = resources.files("forerun.simulate") / "scenarios" / f"{given}.yaml"
        try:
            text = (
                bundled.read_text(encoding="utf-8") if bundled.is_file() else Path(given).read_text("utf-8")
            )
        except OSError as error:
            raise ConfigurationError(
                f"cannot read the scenario {given}: {error.strerror}; there is {', '.join(known())}"
            ) from error
        try:
            return cls(**yaml.safe_load(text))
        except (yaml.YAMLError, TypeError) as error:
            raise ConfigurationError(f"the scenario {given} is not a YAML object: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the scenario"
            raise ConfigurationError(f"{given}: {where}: {first['msg']}") from error

    def scaled(self, replicas: int) -> Scenario:
        """The same with so many replicas and their share of the requests."""
        share = replicas / self.replicas
        return self.model_copy(update={"replicas": replicas, "arrivals": self.arrivals.scaled(share)})

    @property
    def roofline(self) -> Roofline:
        """What passes cost."""
        return Roofline.of(self.device, self.model, self.devices_per_replica)


def known() -> list[str]:
    """The scenarios that come with forerun."""
    folder = resources.files("forerun.simulate") / "scenarios"
    return sorted(each.name.removesuffix(".yaml") for each in folder.iterdir() if each.name.endswith(".yaml"))


BINS: Final = 60
"""A picture of a scenario has so many points from left to right."""


class TimeSeries:
    """What happened when: requests in a machine, time between tokens, guesses."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._sums = np.zeros((BINS, 6))

    def watch(self, now: float, replica: Replica) -> None:
        """A pass of a replica is over."""
        last = replica.last
        waited = last.seconds * last.decoding
        at = min(int(BINS * now / self.seconds), BINS - 1)
        self._sums[at] += (1, replica.num_unfinished, last.decoding, waited, last.said, last.guesses)

    @property
    def times(self) -> FloatArray:
        """The middle of every bin."""
        return (np.arange(BINS) + 0.5) * self.seconds / BINS

    def series(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Requests in a machine, milliseconds between tokens, guesses per request and step."""
        passes, unfinished, decoding, waited, said, guesses = self._sums.T
        with np.errstate(divide="ignore", invalid="ignore"):
            return unfinished / passes, 1e3 * waited / said, guesses / decoding


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """What came of a scenario with one who decides, and how many machines its requests need if it says."""

    who: str
    outcome: Outcome
    history: TimeSeries
    machines: int | None = None

    def values(self) -> dict[str, Any]:
        """As values, for machines."""
        return {"who": self.who, "machines": self.machines} | asdict(self.outcome)


def policy(scenario: Scenario, who: str) -> Policy:
    """Somebody who decides."""
    if who == OURS:
        return ControllerPolicy(profiled(scenario.roofline), scenario.max_draft)
    return FixedLengthPolicy(scenario.fixed_draft if who == FIXED else 0)


def answer(scenario: Scenario, who: str) -> ScenarioResult:
    """What comes of a scenario, and how many machines it needs if it promises anything."""
    history = TimeSeries(scenario.seconds)
    outcome = simulate(scenario, who, watch=history.watch)
    counted = scenario.token_seconds is not None and not isinstance(scenario.arrivals, Recorded)
    return ScenarioResult(who, outcome, history, machines(scenario, who) if counted else None)


def simulate(
    scenario: Scenario, who: str, *, watch: Callable[[float, Replica], None] = lambda *_: None
) -> Outcome:
    """The whole fleet, for as long as the scenario says."""
    random = np.random.default_rng(scenario.seed)
    replicas = [_replica(scenario, who, number) for number in range(scenario.replicas)]
    coming = visits(
        scenario.arrivals, scenario.prompt, scenario.output, scenario.acceptance, scenario.seconds, random
    )
    router = np.random.default_rng([scenario.seed, 1])
    return serve(replicas, coming, scenario.seconds, router, watch=watch)


def _replica(scenario: Scenario, who: str, number: int) -> Replica:
    roofline = scenario.roofline
    if roofline.room < scenario.prompt.median + scenario.output.median:
        raise ConfigurationError(
            f"{scenario.model} does not fit on {scenario.devices_per_replica} x {scenario.device}:"
            " raise devices_per_replica"
        )
    random = np.random.default_rng([scenario.seed, 2, number])
    return Replica(roofline, policy(scenario, who), random, max_batch=scenario.max_batch, room=roofline.room)


def machines(scenario: Scenario, who: str) -> int:
    """How many replicas the busiest hour needs, if tokens are to come as fast as was promised.

    Found for one replica with its share of the requests, by halving: a router that spreads them well makes a
    fleet so many of these.
    """
    if scenario.token_seconds is None or isinstance(scenario.arrivals, Recorded):
        raise ConfigurationError("to count machines, give token_seconds and arrivals that have a rate")
    peak = max(scenario.arrivals.at(now) for now in np.linspace(0, scenario.seconds, 1000))
    low, high = 0.0, 4096.0 / scenario.output.median
    while _bears(scenario, who, high):
        low, high = high, 2 * high
    for _ in range(DOUBLINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _bears(scenario, who, middle) else (low, middle)
    if low == 0.0:
        raise ConfigurationError(
            f"{scenario.name}: no machine keeps {scenario.token_seconds} s between tokens"
        )
    return math.ceil(peak / low)


def _bears(scenario: Scenario, who: str, rate: float) -> bool:
    """Whether one replica keeps the promise at so many requests a second."""
    alone = scenario.model_copy(
        update={
            "replicas": 1,
            "arrivals": Poisson(rate=rate),
            "seconds": max(20.0, 200 / rate),
        }
    )
    outcome = simulate(alone, who)
    kept_up = outcome.waiting <= QUEUE
    return outcome.finished > 0 and kept_up and outcome.between_tokens[1] <= (scenario.token_seconds or 0)
