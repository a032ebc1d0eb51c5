"""Replicas behind a router. Each request goes to the less busy of two that are picked at random."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.simulate.replica import Replica
from forerun.simulate.traffic import SimulatedRequest

Watcher = Callable[[float, Replica], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a fleet did in some seconds."""

    seconds: float
    tokens_per_second: float
    tokens_per_pass: float
    guesses_per_pass: float
    busy: float
    finished: int
    unfinished: int
    waiting: int
    first_token: tuple[float, float]
    between_tokens: tuple[float, float]
    """Medians and 99th percentiles, in seconds."""


def serve(
    replicas: Sequence[Replica],
    visits: Iterable[SimulatedRequest],
    seconds: float,
    random: np.random.Generator,
    *,
    watch: Watcher = lambda *_: None,
) -> Outcome:
    """Let requests come for so many seconds, and say what came out by then."""
    running: list[tuple[float, int]] = []
    idle = set(range(len(replicas)))
    for visit in (*visits, None):
        until = seconds if visit is None else visit.arrival
        _run(replicas, running, idle, until, watch)
        if visit is None:
            break
        one, other = random.integers(len(replicas), size=2).tolist()
        chosen = min(one, other, key=lambda each: replicas[each].num_unfinished)
        replicas[chosen].waiting.append(visit)
        if chosen in idle:
            idle.remove(chosen)
            heapq.heappush(running, (visit.arrival + replicas[chosen].begin(), chosen))
    return _outcome(replicas, seconds)


def _run(
    replicas: Sequence[Replica],
    running: list[tuple[float, int]],
    idle: set[int],
    until: float,
    watch: Watcher,
) -> None:
    """End every pass that is over by then, and begin the next wherever anybody is left."""
    while running and running[0][0] <= until:
        now, which = heapq.heappop(running)
        replica = replicas[which]
        replica.end(now)
        watch(now, replica)
        if replica.num_unfinished:
            heapq.heappush(running, (now + replica.begin(), which))
        else:
            idle.add(which)


def _outcome(replicas: Sequence[Replica], seconds: float) -> Outcome:
    tallies = [replica.tally for replica in replicas]
    tokens = sum(tally.tokens for tally in tallies)
    decoding = max(sum(tally.decoding for tally in tallies), 1)
    said = sum(tally.said for tally in tallies)
    return Outcome(
        seconds,
        tokens / seconds,
        said / decoding,
        sum(tally.guesses for tally in tallies) / decoding,
        sum(tally.busy for tally in tallies) / (seconds * len(replicas)),
        sum(len(tally.to_first) for tally in tallies),
        sum(replica.num_unfinished for replica in replicas),
        sum(len(replica.waiting) for replica in replicas),
        _middle_and_end([each for tally in tallies for each in tally.to_first]),
        _middle_and_end([each for tally in tallies for each in tally.between]),
    )


def _middle_and_end(values: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    if not values:
        return float("nan"), float("nan")
    middle, end = np.percentile(values, [50, 99]).tolist()
    return middle, end
