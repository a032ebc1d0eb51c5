"""Scenarios: hardware, traffic and policies, read from YAML, and their results."""

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
from forerun.simulate.draft_devices import (
    Drafting,
    DraftModelSetup,
    RunAheadDrafting,
    SequentialDrafting,
)
from forerun.simulate.fleet import FleetOutcome, serve
from forerun.simulate.hardware import Roofline
from forerun.simulate.policies import ControllerPolicy, FixedLengthPolicy, Policy, profile_roofline
from forerun.simulate.replica import Replica
from forerun.simulate.traffic import (
    Acceptance,
    Arrivals,
    Length,
    Poisson,
    Positive,
    Recorded,
    generate_requests,
)
from forerun.types import FloatArray

BASELINE, FIXED, FORERUN = "baseline", "fixed", "forerun"
SEQUENTIAL, RUN_AHEAD = "sequential draft model", "run-ahead draft model"
"""Policies of scenarios with a draft model; both draft at the fixed length."""

MAX_QUEUE: Final = 4
"""Maximum number of waiting requests of a replica that sustains its load."""

BISECTION_STEPS: Final = 12
"""Bisection steps of the search for the load that a replica sustains."""


class Scenario(BaseModel):
    """A simulated deployment."""

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
    draft: DraftModelSetup | None = None
    max_draft: Annotated[int, Field(ge=1, le=64)] = 16
    fixed_draft: Annotated[int, Field(ge=1, le=64)] = Field(
        default=4, description="draft length of the fixed-length policy"
    )
    token_seconds: Positive | None = Field(
        default=None, description="target for the 99th percentile of the ITL, in seconds"
    )
    seconds: Positive = 60.0
    seed: int = 0

    @classmethod
    def read(cls, name: str | Path) -> Scenario:
        """Read a file, or a built-in scenario by its name."""
        bundled = resources.files("forerun.simulate") / "scenarios" / f"{name}.yaml"
        try:
            text = bundled.read_text(encoding="utf-8") if bundled.is_file() else Path(name).read_text("utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"cannot read the scenario {name}: {error.strerror}; built-in scenarios are"
                f" {', '.join(bundled_scenarios())}"
            ) from error
        try:
            return cls(**yaml.safe_load(text))
        except (yaml.YAMLError, TypeError) as error:
            raise ConfigurationError(f"the scenario {name} is not a YAML object: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the scenario"
            raise ConfigurationError(f"{name}: {where}: {first['msg']}") from error

    def scaled(self, replicas: int) -> Scenario:
        """The same scenario with `replicas` replicas and their share of the requests."""
        share = replicas / self.replicas
        return self.model_copy(update={"replicas": replicas, "arrivals": self.arrivals.scaled(share)})

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies to compare: lookup drafters take no time, a draft model takes forward passes."""
        return (BASELINE, FIXED, FORERUN) if self.draft is None else (BASELINE, SEQUENTIAL, RUN_AHEAD)

    @property
    def roofline(self) -> Roofline:
        """Cost of forward passes."""
        return Roofline.of(self.device, self.model, self.devices_per_replica)


def bundled_scenarios() -> list[str]:
    """Names of the built-in scenarios."""
    folder = resources.files("forerun.simulate") / "scenarios"
    return sorted(each.name.removesuffix(".yaml") for each in folder.iterdir() if each.name.endswith(".yaml"))


NUM_BINS: Final = 60
"""Number of points of a plot over time."""


class TimeSeries:
    """Requests per replica, ITL and draft tokens over time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._sums = np.zeros((NUM_BINS, 6))

    def observe(self, now: float, replica: Replica) -> None:
        """Add a finished step of a replica."""
        last = replica.last_step
        itl_seconds = last.seconds * last.num_decoding
        bin_index = min(int(NUM_BINS * now / self.seconds), NUM_BINS - 1)
        self._sums[bin_index] += (
            1,
            replica.num_unfinished,
            last.num_decoding,
            itl_seconds,
            last.tokens,
            last.draft_tokens,
        )

    @property
    def times(self) -> FloatArray:
        """Centres of the bins."""
        return (np.arange(NUM_BINS) + 0.5) * self.seconds / NUM_BINS

    def series(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Requests per replica, ITL in milliseconds, draft tokens per request and step."""
        steps, unfinished, decoding, itl_seconds, tokens, draft_tokens = self._sums.T
        with np.errstate(divide="ignore", invalid="ignore"):
            return unfinished / steps, 1e3 * itl_seconds / tokens, draft_tokens / decoding


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """Results of a scenario under one policy, and the replicas needed if the scenario has a target."""

    policy: str
    outcome: FleetOutcome
    time_series: TimeSeries
    replicas_needed: int | None = None

    def values(self) -> dict[str, Any]:
        """Results as JSON values."""
        return {"policy": self.policy, "replicas_needed": self.replicas_needed} | asdict(self.outcome)


def make_policy(scenario: Scenario, policy: str) -> Policy:
    """Create a policy by name."""
    if policy == FORERUN:
        return ControllerPolicy(profile_roofline(scenario.roofline), scenario.max_draft)
    return FixedLengthPolicy(0 if policy == BASELINE else scenario.fixed_draft)


def make_drafting(scenario: Scenario, policy: str, random: np.random.Generator) -> Drafting | None:
    """The time of the draft model under a policy; none for lookup drafters."""
    if scenario.draft is None or policy not in {SEQUENTIAL, RUN_AHEAD}:
        return None
    setup = scenario.draft
    if policy == SEQUENTIAL:
        return SequentialDrafting(Roofline.of(scenario.device, setup.model, scenario.devices_per_replica))
    return RunAheadDrafting(Roofline.of(scenario.device, setup.model, setup.devices), setup, random)


def run_scenario(scenario: Scenario, policy: str) -> ScenarioResult:
    """Simulate a scenario, and count the replicas needed if it has a target."""
    time_series = TimeSeries(scenario.seconds)
    outcome = simulate(scenario, policy, observe=time_series.observe)
    has_target = scenario.token_seconds is not None and not isinstance(scenario.arrivals, Recorded)
    return ScenarioResult(
        policy, outcome, time_series, replicas_needed(scenario, policy) if has_target else None
    )


def simulate(
    scenario: Scenario, policy: str, *, observe: Callable[[float, Replica], None] = lambda *_: None
) -> FleetOutcome:
    """Simulate the whole fleet for the duration of the scenario."""
    random = np.random.default_rng(scenario.seed)
    replicas = [_replica(scenario, policy, number) for number in range(scenario.replicas)]
    requests = generate_requests(
        scenario.arrivals, scenario.prompt, scenario.output, scenario.acceptance, scenario.seconds, random
    )
    router = np.random.default_rng([scenario.seed, 1])
    return serve(replicas, requests, scenario.seconds, router, observe=observe)


def _replica(scenario: Scenario, policy: str, number: int) -> Replica:
    roofline = scenario.roofline
    if roofline.context_capacity < scenario.prompt.median + scenario.output.median:
        raise ConfigurationError(
            f"{scenario.model} does not fit on {scenario.devices_per_replica} x {scenario.device}:"
            " raise devices_per_replica"
        )
    random = np.random.default_rng([scenario.seed, 2, number])
    return Replica(
        roofline,
        make_policy(scenario, policy),
        random,
        max_batch=scenario.max_batch,
        kv_capacity=roofline.context_capacity,
        drafting=make_drafting(scenario, policy, np.random.default_rng([scenario.seed, 3, number])),
    )


def replicas_needed(scenario: Scenario, policy: str) -> int:
    """Replicas needed at peak load to keep the 99th percentile of the ITL within `token_seconds`.

    Bisection finds the request rate that one replica sustains. A router that balances well makes the fleet a
    multiple of it.
    """
    if scenario.token_seconds is None or isinstance(scenario.arrivals, Recorded):
        raise ConfigurationError(
            "counting replicas needs token_seconds and arrivals with a rate (not a trace)"
        )
    peak = max(scenario.arrivals.at(now) for now in np.linspace(0, scenario.seconds, 1000))
    low, high = 0.0, 4096.0 / scenario.output.median
    while _sustains(scenario, policy, high):
        low, high = high, 2 * high
    for _ in range(BISECTION_STEPS):
        rate = 0.5 * (low + high)
        low, high = (rate, high) if _sustains(scenario, policy, rate) else (low, rate)
    if low == 0.0:
        raise ConfigurationError(
            f"{scenario.name}: no load keeps the ITL p99 at token_seconds={scenario.token_seconds}: raise it"
        )
    return math.ceil(peak / low)


def _sustains(scenario: Scenario, policy: str, rate: float) -> bool:
    """Whether one replica keeps the target at this request rate."""
    one_replica = scenario.model_copy(
        update={
            "replicas": 1,
            "arrivals": Poisson(rate=rate),
            "seconds": max(20.0, 200 / rate),
        }
    )
    outcome = simulate(one_replica, policy)
    keeps_up = outcome.waiting <= MAX_QUEUE
    return outcome.finished > 0 and keeps_up and outcome.itl[1] <= (scenario.token_seconds or 0)
