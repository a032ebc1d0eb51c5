"""Replicas behind a router that sends each request to the less loaded of two random replicas."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.simulate.replica import Replica
from forerun.simulate.traffic import SimulatedRequest

StepObserver = Callable[[float, Replica], None]


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """Results of a fleet over the simulated time."""

    seconds: float
    tokens_per_second: float
    tokens_per_step: float
    draft_tokens_per_step: float
    busy: float
    finished: int
    unfinished: int
    waiting: int
    ttft: tuple[float, float]
    itl: tuple[float, float]
    """Medians and 99th percentiles, in seconds."""


def serve(
    replicas: Sequence[Replica],
    requests: Iterable[SimulatedRequest],
    seconds: float,
    random: np.random.Generator,
    *,
    observe: StepObserver = lambda *_: None,
) -> FleetOutcome:
    """Serve requests for `seconds` of simulated time and return the results."""
    running: list[tuple[float, int]] = []
    idle = set(range(len(replicas)))
    for request in (*requests, None):
        until = seconds if request is None else request.arrival
        _advance(replicas, running, idle, until, observe)
        if request is None:
            break
        first, second = random.integers(len(replicas), size=2).tolist()
        chosen = min(first, second, key=lambda each: replicas[each].num_unfinished)
        replicas[chosen].waiting.append(request)
        if chosen in idle:
            idle.remove(chosen)
            heapq.heappush(running, (request.arrival + replicas[chosen].begin_step(), chosen))
    return _outcome(replicas, seconds)


def _advance(
    replicas: Sequence[Replica],
    running: list[tuple[float, int]],
    idle: set[int],
    until: float,
    observe: StepObserver,
) -> None:
    """End every step that is over by `until`; replicas with unfinished requests begin their next step."""
    while running and running[0][0] <= until:
        now, index = heapq.heappop(running)
        replica = replicas[index]
        replica.end_step(now)
        observe(now, replica)
        if replica.num_unfinished:
            heapq.heappush(running, (now + replica.begin_step(), index))
        else:
            idle.add(index)


def _outcome(replicas: Sequence[Replica], seconds: float) -> FleetOutcome:
    stats = [replica.stats for replica in replicas]
    tokens = sum(each.tokens for each in stats)
    num_decoding = max(sum(each.decode_steps for each in stats), 1)
    decoded = sum(each.decoded_tokens for each in stats)
    return FleetOutcome(
        seconds,
        tokens / seconds,
        decoded / num_decoding,
        sum(each.draft_tokens for each in stats) / num_decoding,
        sum(each.busy_seconds for each in stats) / (seconds * len(replicas)),
        sum(len(each.ttft) for each in stats),
        sum(replica.num_unfinished for replica in replicas),
        sum(len(replica.waiting) for replica in replicas),
        _p50_p99([ttft for each in stats for ttft in each.ttft]),
        _p50_p99([itl for each in stats for itl in each.itl]),
    )


def _p50_p99(values: Sequence[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    if not values:
        return float("nan"), float("nan")
    p50, p99 = np.percentile(values, [50, 99]).tolist()
    return p50, p99
