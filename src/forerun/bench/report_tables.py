"""Tables of a benchmark, in Markdown and as values.

A system that failed or whose output differs carries a mark next to each of its speeds.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from forerun.bench.ratios import OVERALL
from forerun.bench.record import BenchRecord
from forerun.bench.summary import CategoryResult, SystemResult, summarise
from forerun.bench.system_names import FORERUN, VLLM

INVALID_MARK: Final = "✗"
"""Next to speeds of a system with missing answers or different output."""

UNDECIDED_MARK: Final = "?"
"""Next to speeds of a system with differences that may be near-ties."""


def category_tables(results: Sequence[SystemResult]) -> dict[str, list[list[str]]]:
    """A table by setting: speedup and tokens per step by category, speed, and output comparison."""
    settings = dict.fromkeys((each.temperature, each.concurrency) for each in results)
    tables = {}
    for setting in settings:
        some = [each for each in results if (each.temperature, each.concurrency) == setting]
        names = dict.fromkeys(name for each in some for name in each.by_category if name != OVERALL)
        categories = [*names, OVERALL]
        rows = [["", *categories, _speed_title(some[0]), "output"]]
        for each in some:
            cells = [
                _speedup_cell(each, each.by_category.get(name), interval=name == OVERALL)
                for name in categories
            ]
            rows.append([each.system, *cells, _speed(each), output_text(each)])
        tables[setting_title(some[0])] = rows
    return tables


def overall_tables(results: Sequence[SystemResult]) -> dict[str, list[list[str]]]:
    """A table by setting over all categories: speedup, tokens per step, speed, and output comparison."""
    tables: dict[str, list[list[str]]] = {}
    for each in results:
        head = ["", "speedup", "tok/step", _speed_title(each), "output"]
        rows = tables.setdefault(setting_title(each), [head])
        overall = each.overall
        if overall is None:
            rows.append([each.system, *[""] * 3, output_text(each)])
            continue
        ratio = overall.speedup
        steps = "" if overall.tokens_per_step is None else f"{overall.tokens_per_step:.2f}"
        shown = f"{ratio.value:.2f}" if each.system == each.baseline else str(ratio)
        rows.append([each.system, f"{shown}{mark(each)}", steps, _speed(each), output_text(each)])
    return tables


def _speed_title(result: SystemResult) -> str:
    return "tok/s" if result.concurrency == 1 else "tok/s, all"


def _speed(result: SystemResult) -> str:
    """Decoding speed at concurrency 1, throughput above."""
    if result.overall is None:
        return ""
    speed = result.overall.speed if result.concurrency == 1 else result.throughput
    return f"{speed:.1f}{mark(result)}"


def vllm_caption(record: BenchRecord, *, quote: str = "") -> str:
    """The flags and environment of the record's vLLM servers that differ from vLLM's defaults."""
    settings = dict.fromkeys(filter(None, map(_vllm_settings, record.runs)))
    if not settings:
        return "vLLM flags: not recorded; no vLLM server was started by the benchmark"
    return f"vLLM flags: {'; in another run: '.join(f'{quote}{each}{quote}' for each in settings)}"


def _vllm_settings(run: dict[str, Any]) -> str:
    """The flags and environment of a run's vLLM servers; old records have the flags in a command only."""
    command = run["systems"].get(VLLM, {}).get("command", [])
    flags = run.get("vllm_flags", command[command.index("serve") + 2 :] if "serve" in command else [])
    environment = [f"{name}={value}" for name, value in run.get("vllm_environment", {}).items()]
    return " ".join(
        [*([shlex.join(flags)] if flags else []), *(["with", *environment] if environment else [])]
    )


def markdown(results: Sequence[SystemResult], caption: str = "") -> str:
    """The category tables in Markdown with a caption below them."""
    parts = []
    for title, (head, *rows) in category_tables(results).items():
        ruler = ["---", *["---:"] * (len(head) - 2), "---"]
        bold = [[f"**{row[0]}**" if row[0] == FORERUN else row[0], *row[1:]] for row in rows]
        lines = "\n".join(f"| {' | '.join(row)} |" for row in (head, ruler, *bold))
        parts.append(f"{title}:\n\n{lines}")
    return "\n\n".join([*parts, *([caption] if caption else [])])


def mark(result: SystemResult) -> str:
    """The mark next to every speed of a system; empty if the result is valid."""
    if not result.is_valid:
        return f" {INVALID_MARK}"
    return f" {UNDECIDED_MARK}" if result.output.is_undecided else ""


def output_text(result: SystemResult) -> str:
    """The comparison of a system's output with its baseline's, and the number of missing answers."""
    text = "baseline" if result.system == result.baseline else result.output.summary()
    if result.differs_elsewhere and result.output.passed:
        text += ", DIFFERENT at another setting"
    return f"{INVALID_MARK} {result.num_missing} missing; {text}" if result.num_missing else text


def _speedup_cell(result: SystemResult, line: CategoryResult | None, *, interval: bool) -> str:
    if line is None:
        return ""
    is_baseline = result.system == result.baseline
    ratio = str(line.speedup) if interval and not is_baseline else f"{line.speedup.value:.2f}"
    steps = "" if line.tokens_per_step is None or is_baseline else f" ({line.tokens_per_step:.2f})"
    return f"{ratio}{steps}{mark(result)}"


def setting_title(result: SystemResult) -> str:
    """Temperature and concurrency as a title."""
    temperature = "Greedy" if not result.temperature else f"Temperature {result.temperature:g}"
    return f"{temperature}, concurrency {result.concurrency}"


def as_values(record: BenchRecord) -> list[dict[str, Any]]:
    """Every result as JSON values."""
    return [
        {key: value for key, value in asdict(each).items() if key not in {"itls", "relative"}}
        | {"is_valid": each.is_valid}
        for each in summarise(record)
    ]
