"""What the benchmarks share: medians with quartiles, and records."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, with the quartiles around it."""
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, low, high


def cell(numbers: Sequence[float]) -> str:
    """A figure with what lies around it: quartiles, or an interval."""
    return "{:.2f} [{:.2f}, {:.2f}]".format(*numbers)


Record = Annotated[Path | None, typer.Option(help="Keep the figures in this file, with provenance.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def keep(lines: list[dict[str, Any]], facts: dict[str, Any], record: Path | None) -> None:
    """Keep the lines and what it takes to measure them again, if asked for."""
    if record is not None:
        record.write_text(json.dumps({**facts, "lines": lines}, indent=2) + "\n", encoding="utf-8")


def finish(
    lines: list[dict[str, Any]],
    facts: dict[str, Any],
    show: Callable[[list[dict[str, Any]]], None],
    record: Path | None,
    as_json: bool,
) -> None:
    """Keep the lines, if asked for, and print them."""
    keep(lines, facts, record)
    if as_json:
        print(json.dumps(lines, indent=2))
    else:
        show(lines)
