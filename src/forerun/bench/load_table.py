"""Speed under load as a line per cell, and as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from forerun.bench.load import (
    BASELINE,
    FORERUN,
    MIN_RATIO_TO_BEST,
    CostCurve,
    LoadRun,
    compare,
    fit_costs,
)


def lines_of(runs: list[LoadRun]) -> list[dict[str, Any]]:
    """A line for each cell: every mode over the baseline, and forerun over the best fixed draft length."""
    curves: dict[str, CostCurve] = {
        name: fit_costs([run for run in runs if run.family == name]) for name in {run.family for run in runs}
    }
    lines = []
    for cell in dict.fromkeys(run.cell for run in runs):
        some = [run for run in runs if run.cell == cell]
        lines.append(line_of(some, curves[some[0].family]))
    return lines


def line_of(runs: list[LoadRun], curve: CostCurve) -> dict[str, Any]:
    """The line of one cell."""
    modes = {mode: [run for run in runs if run.mode == mode] for mode in dict.fromkeys(r.mode for r in runs)}
    dtype, text, concurrency = runs[0].cell.split(" | ")
    steps = {mode: sum(run.num_steps for run in modes[mode]) for mode in (FORERUN, BASELINE)}
    ratios = {mode: compare(some, modes[BASELINE], curve) for mode, some in modes.items() if mode != BASELINE}
    line: dict[str, Any] = {
        "dtype": dtype,
        "text": text,
        "concurrency": int(concurrency),
        "speedup": asdict(ratios[FORERUN]),
        "holds": ratios[FORERUN].holds,
        "tokens_per_step": sum(run.num_tokens for run in modes[FORERUN]) / steps[FORERUN] / int(concurrency),
        "steps": {mode: round(num) for mode, num in steps.items()},
    }
    fixed = {mode: asdict(ratio) for mode, ratio in ratios.items() if mode != FORERUN}
    if fixed:
        best = max(fixed, key=lambda mode: float(fixed[mode]["without_noise"]))
        over_best = compare(modes[FORERUN], modes[best], curve, MIN_RATIO_TO_BEST)
        line |= {"fixed": fixed, "best": best, "over_best": asdict(over_best)}
    return line


def markdown(lines: Sequence[dict[str, Any]]) -> str:
    """The lines as a Markdown table."""
    titles = [
        "dtype",
        "workload",
        "concurrency",
        "speedup, measured",
        "speedup, noise-free",
        "tokens per step",
    ]
    titles += ["best fixed K", "over best fixed, measured", "over best fixed, noise-free"]
    rows = [titles, ["---"] * 2 + ["---:"] * 7]
    for line in lines:
        speedup, over_best = line["speedup"], line.get("over_best")
        cells = [line["dtype"], line["text"], str(line["concurrency"])]
        cells += [measured(speedup), f"{speedup['without_noise']:.3f}", f"{line['tokens_per_step']:.2f}"]
        if over_best is None:
            cells += [""] * 3
        else:
            best = line["best"].removeprefix("fixed ")
            cells += [best, measured(over_best), f"{over_best['without_noise']:.3f}"]
        rows.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def measured(ratio: dict[str, float]) -> str:
    """The measured median of a ratio with its interval."""
    return "{median:.2f} [{low:.2f}, {high:.2f}]".format(**ratio)
