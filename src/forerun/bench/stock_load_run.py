"""Measures the cells of a load measurement: the client runs against both systems in alternation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from forerun.bench.client_results import ClientResult
from forerun.bench.recorded_answer import MAX_STEAL_SHARE
from forerun.bench.run import IDLE_SECONDS
from forerun.bench.stock_load import ClientLoad, LoadCell, capacity_cell
from forerun.bench.stock_load_client import ClientTurn
from forerun.bench.stock_load_record import SYSTEMS, LoadAlternation, StockLoadRecord
from forerun.control.machine_load import CpuTicks
from forerun.errors import ServerFailed

RunClient = Callable[[str, ClientTurn], ClientResult]
"""Runs the client against the system of this name."""


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """Settings of all turns. `num_prompts` has the loads whose number of requests is not the default.

    An alternation disturbed by steal time is repeated until there are `max_attempts`.
    """

    max_tokens: int
    num_prompts: Mapping[ClientLoad, int]
    max_attempts: int = 2
    idle_seconds: float = IDLE_SECONDS

    def turn(self, cell: LoadCell, seed: int, capacity: float | None) -> ClientTurn:
        """One run of the client in a cell."""
        num = self.num_prompts.get(cell.load, cell.load.default_num_prompts)
        if cell.load.kind == "closed":
            return ClientTurn(cell, num, self.max_tokens, seed)
        if capacity is None:
            raise ValueError(f"{cell} needs the capacity of stock vLLM, which {capacity_cell(cell)} measures")
        return ClientTurn(cell, num, self.max_tokens, seed, request_rate=capacity * cell.load.level)


def missing_alternations(
    cells: list[LoadCell], record: StockLoadRecord, num_alternations: int
) -> dict[LoadCell, int]:
    """Alternations that the record lacks, by cell, in the order of their measurement.

    Open loads without a known capacity put one alternation of the highest closed load before them.
    """
    missing: dict[LoadCell, int] = {}
    for cell in cells:
        num = num_alternations - record.num_alternations(cell)
        if num <= 0:
            continue
        source = capacity_cell(cell)
        if cell.load.kind == "open" and source not in missing and record.capacity(cell) is None:
            missing[source] = 1
        missing[cell] = num
    return missing


def measure_alternation(
    cell: LoadCell, record: StockLoadRecord, run_client: RunClient, settings: TurnSettings
) -> LoadAlternation:
    """Measure the next alternation of a cell, again with new prompts while steal time is too high.

    The attempt with the least steal time is returned. A failed request raises `ServerFailed`.
    """
    number = record.num_alternations(cell)
    attempts: list[LoadAlternation] = []
    while len(attempts) < settings.max_attempts:
        seed = cell.seed(number, len(attempts))
        turn = settings.turn(cell, seed, record.capacity(cell))
        attempts.append(_alternate(turn, run_client, len(record.runs) - 1, settings.idle_seconds))
        if _max_steal(attempts[-1]) <= MAX_STEAL_SHARE:
            break
    return min(attempts, key=_max_steal)


def _alternate(turn: ClientTurn, run_client: RunClient, run: int, idle_seconds: float) -> LoadAlternation:
    """One run of the client against each system, in random order."""
    order = tuple(np.random.default_rng(turn.seed).permutation(SYSTEMS).tolist())
    results, steal_shares = {}, {}
    for name in order:
        time.sleep(idle_seconds)
        before = CpuTicks.now()
        results[name] = check_complete(run_client(name, turn), turn, name)
        steal_shares[name] = round(CpuTicks.now().steal_share_since(before), 3)
    return LoadAlternation(run, turn.seed, order, results, steal_shares)


def check_complete(result: ClientResult, turn: ClientTurn, system: str) -> ClientResult:
    """The result, unless a request failed or the client did not send it."""
    if result.num_failed or result.num_completed != turn.num_prompts:
        reason = f": {result.error.strip().splitlines()[-1]}" if result.error.strip() else ""
        raise ServerFailed(
            f"{system} completed {result.num_completed} of {turn.num_prompts} requests of {turn.cell}{reason}"
        )
    return result


def _max_steal(alternation: LoadAlternation) -> float:
    return max(alternation.steal_shares.values())
