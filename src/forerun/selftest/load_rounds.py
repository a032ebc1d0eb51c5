"""The load of a self-test: rounds of requests by kind of text and concurrency, with the server's counters."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.selftest.plan import GREEDY, SelftestPlan, single_prompts
from forerun.servers.completions import END, Prompt, Token
from forerun.servers.concurrency import map_concurrent
from forerun.servers.endpoint import Endpoint

Cell = tuple[str, int]
"""A kind of text and a concurrency."""

_STEPS: Final = "forerun:request_steps_total"
_TOKENS: Final = "forerun:tokens_total"
_DRAFT_TOKENS: Final = "spec_decode_num_draft_tokens_total"
_ACCEPTED_TOKENS: Final = "spec_decode_num_accepted_tokens_total"
_COUNTERS: Final = (_STEPS, _TOKENS, _DRAFT_TOKENS, _ACCEPTED_TOKENS)


@dataclass(frozen=True, slots=True)
class LoadRound:
    """One round of a cell: seconds from the first request to the last output, and the outputs."""

    seconds: float
    outputs: tuple[tuple[Token, ...], ...]

    @property
    def num_tokens(self) -> int:
        """Output tokens, without the marker of an end."""
        return sum(token != END for output in self.outputs for token in output)

    @property
    def seconds_per_token(self) -> float:
        """Seconds per output token over all requests in flight."""
        return self.seconds / max(1, self.num_tokens)


@dataclass(frozen=True, slots=True)
class CellRun:
    """The rounds of a cell, and the server's counters of these rounds; none in a server without forerun."""

    rounds: tuple[LoadRound, ...]
    counters: Mapping[str, float]

    @property
    def tokens_per_second(self) -> float:
        """Throughput over all rounds."""
        return sum(each.num_tokens for each in self.rounds) / sum(each.seconds for each in self.rounds)

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens per request and step."""
        return _share(self.counters, _TOKENS, _STEPS)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted draft tokens per draft token."""
        return _share(self.counters, _ACCEPTED_TOKENS, _DRAFT_TOKENS)


def _share(counters: Mapping[str, float], above: str, below: str) -> float | None:
    return counters[above] / counters[below] if counters.get(below) and above in counters else None


def measure_load(
    server: Endpoint, plan: SelftestPlan, num_single: int | None = None
) -> tuple[dict[Cell, CellRun], int]:
    """Run all cells, round by round; returns them with the number of prompts of a round at concurrency 1.

    Every prompt is sent once beforehand, so that all rounds find it in the prefix cache. The baseline
    determines `num_single` from its speed, and the other server takes the same.
    """
    for prompts in plan.workloads.values():
        _send(server, prompts, max(plan.concurrencies), plan.load_tokens)
    if num_single is None:
        num_single = _num_single(server, plan)
    rounds: dict[Cell, list[LoadRound]] = {}
    counters: dict[Cell, dict[str, float]] = {}
    for number in range(plan.num_rounds):
        for text, prompts in plan.workloads.items():
            for concurrency in plan.concurrencies:
                some = single_prompts(prompts, number, num_single) if concurrency == 1 else prompts
                before = _read_counters(server)
                made = _send(server, some, concurrency, plan.load_tokens)
                after = _read_counters(server)
                cell = text, concurrency
                rounds.setdefault(cell, []).append(made)
                total = counters.setdefault(cell, {})
                for name, value in after.items():
                    total[name] = total.get(name, 0.0) + value - before.get(name, 0.0)
    return {cell: CellRun(tuple(some), counters[cell]) for cell, some in rounds.items()}, num_single


def _num_single(server: Endpoint, plan: SelftestPlan) -> int:
    """The number of prompts, one at a time, that take about the intended time of a round."""
    prompts = next(iter(plan.workloads.values()))
    trial = _send(server, prompts[:1], 1, plan.load_tokens)
    wanted = math.floor(plan.seconds_per_round / max(trial.seconds, 1e-3))
    return max(1, min(wanted, len(prompts) // plan.num_rounds))


def _send(server: Endpoint, prompts: Sequence[Prompt], concurrency: int, max_tokens: int) -> LoadRound:
    began = time.perf_counter()
    sent = map_concurrent(lambda each: server.complete(each, GREEDY, max_tokens)[0], prompts, concurrency)
    outputs = tuple(each.tokens for each in sent)
    return LoadRound(time.perf_counter() - began, outputs)


def _read_counters(server: Endpoint) -> dict[str, float]:
    values = {name: server.read_metric(name).values() for name in _COUNTERS}
    return {name: sum(found) for name, found in values.items() if found}
