"""Cells of a load measurement against stock vLLM: a text, a temperature and a load.

A closed load keeps a number of requests in flight. An open load has Poisson arrivals at a share of the
request rate that stock vLLM completes in the highest closed load, its capacity.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, Literal

from forerun.errors import ConfigurationError, did_you_mean

CODE, CHAT, RANDOM = "code editing", "chat", "random"
TEXTS: Final = (CHAT, CODE, RANDOM)

_LOAD: Final = re.compile(r"(closed|open)[ -](\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """A closed load with `level` requests in flight, or an open load at the share `level` of capacity."""

    kind: Literal["closed", "open"]
    level: float

    @classmethod
    def parse(cls, given: str) -> ClientLoad:
        """A load from its name, `closed 8` or `open 0.8`; a hyphen may replace the space."""
        match = _LOAD.fullmatch(given.strip())
        if match is None:
            raise ConfigurationError(f"got the load {given!r}, expected for example closed-8 or open-0.8")
        level = float(match[2])
        if match[1] == "closed" and level >= 1 and level.is_integer():
            return cls("closed", level)
        if match[1] == "open" and level > 0:
            return cls("open", level)
        raise ConfigurationError(
            f"got the load {given!r}, expected an integer for a closed load, a share above 0 for an open one"
        )

    def __str__(self) -> str:
        """The name of the load in records."""
        return f"{self.kind} {self.level:g}"

    @property
    def default_num_prompts(self) -> int:
        """Requests of a turn: three per request in flight and at least 8, or 40 arrivals."""
        return max(8, 3 * int(self.level)) if self.kind == "closed" else 40


LOADS: Final = tuple(
    [ClientLoad("closed", level) for level in (1, 8, 16, 32)]
    + [ClientLoad("open", level) for level in (0.5, 0.8, 0.95)]
)
"""The loads of the complete measurement."""

CAPACITY_LOAD: Final = max((each for each in LOADS if each.kind == "closed"), key=lambda each: each.level)
"""The closed load at which the capacity of stock vLLM is measured."""


@dataclass(frozen=True, slots=True)
class LoadCell:
    """One cell: both systems run it in alternation."""

    dtype: str
    text: str
    temperature: float
    load: ClientLoad

    def __post_init__(self) -> None:
        if self.text not in TEXTS:
            raise ConfigurationError(f"unknown text {self.text!r}; {did_you_mean(self.text, TEXTS)}")

    def __str__(self) -> str:
        """The name of the cell in records and messages."""
        return f"{self.workload}, {self.load}"

    @property
    def workload(self) -> str:
        """The cell without its load: what one capacity applies to."""
        return f"{self.dtype}, {self.text}, temperature {self.temperature:g}"

    def to_row(self) -> dict[str, Any]:
        """The cell as JSON values."""
        return {
            "dtype": self.dtype,
            "text": self.text,
            "temperature": self.temperature,
            "load": str(self.load),
        }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> LoadCell:
        """The cell from JSON values; the inverse of `to_row`."""
        return cls(row["dtype"], row["text"], float(row["temperature"]), ClientLoad.parse(row["load"]))

    def seed(self, alternation: int, attempt: int = 0) -> int:
        """The seed of an alternation: of prompts, arrivals and sampling, the same for both systems."""
        name = f"{self}, alternation {alternation}, attempt {attempt}"
        return int.from_bytes(sha256(name.encode()).digest()[:4]) >> 1


def plan_cells(
    dtype: str, texts: Sequence[str], temperatures: Sequence[float], loads: Sequence[ClientLoad]
) -> list[LoadCell]:
    """The cells in the order of their measurement: closed loads first, since they give the capacity."""
    in_order = [each for kind in ("closed", "open") for each in loads if each.kind == kind]
    return [
        LoadCell(dtype, text, temperature, load)
        for temperature in temperatures
        for text in texts
        for load in in_order
    ]


def capacity_cell(cell: LoadCell) -> LoadCell:
    """The cell in which the capacity of stock vLLM for this cell's workload is measured."""
    return replace(cell, load=CAPACITY_LOAD)
