"""Shared by the benchmark scripts: medians with quartiles, and record files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from forerun.json_records import rename_keys

OLD_KEYS: Final = {
    "by_a_run": "measured",
    "gain": "speedup",
    "guesses_per_step": "draft_tokens_per_step",
    "off_over_plain": "off_speedup",
    "over_plain": "speedup",
    "plain": "baseline",
    "plain_speed": "baseline_speed",
    "predicted_gain": "predicted_speedup",
    "predicted_gain_interval": "predicted_speedup_interval",
    "predicted_of_measured": "predicted_for_measured",
    "predicted_of_measured_interval": "predicted_for_measured_interval",
    "real_over_predicted": "measured_over_predicted",
    "same": "num_identical",
    "same_words": "num_identical",
    "tokens_per_pass": "tokens_per_step",
}
"""Key names of earlier record files, with their present names."""


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, then the lower and upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, low, high


def cell(numbers: Sequence[float]) -> str:
    """A figure with its quartiles or interval."""
    return "{:.2f} [{:.2f}, {:.2f}]".format(*numbers)


Record = Annotated[Path | None, typer.Option(help="Write the figures and their provenance to this file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def write_record(lines: list[dict[str, Any]], facts: dict[str, Any], record: Path | None) -> None:
    """Write the lines with their provenance, if a file is given."""
    if record is not None:
        record.write_text(json.dumps({**facts, "lines": lines}, indent=2) + "\n", encoding="utf-8")


def read_lines(record: Path) -> list[dict[str, Any]]:
    """The lines of a record file of any version, with the present key names."""
    present = partial(rename_keys, new_names=OLD_KEYS)
    lines: list[dict[str, Any]] = json.loads(record.read_text("utf-8"), object_hook=present)["lines"]
    return lines


def finish(
    lines: list[dict[str, Any]],
    facts: dict[str, Any],
    show: Callable[[list[dict[str, Any]]], None],
    record: Path | None,
    as_json: bool,
) -> None:
    """Write the record, if a file is given, and print the lines."""
    write_record(lines, facts, record)
    if as_json:
        print(json.dumps(lines, indent=2))
    else:
        show(lines)
