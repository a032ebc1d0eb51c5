"""The record of a load measurement against stock vLLM: JSON with one entry per cell, written after every
alternation and continued by later runs.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from forerun.bench.client_results import ClientResult
from forerun.bench.stock_load import LoadCell, capacity_cell
from forerun.bench.stock_load_ratios import LoadComparison, compare_results
from forerun.bench.system_names import FORERUN, VLLM
from forerun.errors import ConfigurationError, UnreadableRecord

SYSTEMS: Final = (VLLM, FORERUN)

FIXED_SETTINGS: Final = ("model", "max_tokens", "questions", "vllm_environment")
"""Settings that all alternations of a cell share."""


@dataclass(frozen=True, slots=True)
class LoadAlternation:
    """One run of the client against each system, with steal time as a share of CPU time.

    `run` is the index of the facts of the run that measured it. `order` names the systems in their order.
    """

    run: int
    seed: int
    order: tuple[str, ...]
    results: dict[str, ClientResult]
    steal_shares: dict[str, float]

    def to_row(self) -> dict[str, Any]:
        """The alternation as JSON values."""
        return {
            "run": self.run,
            "seed": self.seed,
            "order": list(self.order),
            "systems": {
                name: {"steal_share": self.steal_shares[name], **result.to_row()}
                for name, result in self.results.items()
            },
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> LoadAlternation:
        """The alternation from JSON values; the inverse of `to_row`."""
        systems = row["systems"]
        return cls(
            row["run"],
            row["seed"],
            tuple(row["order"]),
            {name: ClientResult.from_row(each) for name, each in systems.items()},
            {name: each["steal_share"] for name, each in systems.items()},
        )


@dataclass(slots=True)
class StockLoadRecord:
    """Facts of all runs, capacities of stock vLLM in requests/s by workload, and alternations by cell."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    capacities: dict[str, float] = field(default_factory=dict)
    cells: dict[LoadCell, list[LoadAlternation]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> StockLoadRecord:
        """Read a record."""
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            cells = {
                LoadCell.from_row(row): [LoadAlternation.from_row(each) for each in row["turns"]]
                for row in values["cells"]
            }
            return cls(values["runs"], values["capacities"], cells)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UnreadableRecord(
                f"{file} is not a record of `make bench-stock-load`: {type(error).__name__}: {error}"
            ) from error

    def write(self, file: Path) -> None:
        """Replace the file, so that an interrupt leaves either the old or the new record."""
        values = {
            "runs": self.runs,
            "capacities": self.capacities,
            "cells": [self._row(cell) for cell in self.cells],
        }
        draft = file.with_name(f".{file.name}.new")
        draft.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, file)

    def add(self, cell: LoadCell, alternation: LoadAlternation) -> None:
        """Add an alternation, and keep the capacity if it is the first to measure that."""
        self.cells.setdefault(cell, []).append(alternation)
        self.capacity(cell)

    def num_alternations(self, cell: LoadCell) -> int:
        """The number of complete alternations of a cell."""
        return len(self.cells.get(cell, ()))

    def compare(self, cell: LoadCell) -> LoadComparison:
        """forerun against stock in a cell with at least one alternation."""
        return compare_results([(each.results[VLLM], each.results[FORERUN]) for each in self.cells[cell]])

    def capacity(self, cell: LoadCell) -> float | None:
        """Requests/s that stock completes at the highest closed load; none until that is measured.

        The first request keeps the value, so that all alternations of open loads have the same rates.
        """
        if cell.workload not in self.capacities:
            measured = self.cells.get(capacity_cell(cell))
            if not measured:
                return None
            rates = [each.results[VLLM].request_throughput for each in measured]
            self.capacities[cell.workload] = statistics.median(rates)
        return self.capacities[cell.workload]

    def drop(self, cell: LoadCell) -> None:
        """Drop the alternations of a cell, and the capacity if it comes from this cell."""
        if self.cells.pop(cell, None) and cell == capacity_cell(cell):
            self.capacities.pop(cell.workload, None)

    def check_settings(self, cell: LoadCell, settings: Mapping[str, Any]) -> None:
        """Raise if earlier alternations of a cell were measured with other settings."""
        for run in {each.run for each in self.cells.get(cell, ())}:
            before = self.runs[run]["settings"]
            for name in FIXED_SETTINGS:
                if before.get(name) != settings.get(name):
                    raise ConfigurationError(
                        f"the record has {cell} with {name} {before.get(name)}, got {settings.get(name)}:"
                        " give --replace to measure the cell anew, or another --record"
                    )

    def _row(self, cell: LoadCell) -> dict[str, Any]:
        turns = [each.to_row() for each in self.cells[cell]]
        return {**cell.to_row(), **self.compare(cell).to_row(), "turns": turns}
