"""Figures of an audit report."""

from __future__ import annotations

import math
from typing import Any

from forerun.rendering.palette import light
from forerun.rendering.plots import Figure, new_axes, new_grid


def draw_evidence(
    trace: list[tuple[int, float]], rows: list[tuple[str, list[Any]]], error_rate: float
) -> Figure:
    """The e-process over samples: jointly, per row, and the threshold for a difference."""
    figure, axes = new_axes(7.5, 3.8)
    total = max(at for at, _ in trace)
    for _, points in rows:
        last = max(at for at, _ in points)
        axes.plot(
            [at / last * total for at, _ in points], [log for _, log in points], color=light("grey"), lw=0.8
        )
    axes.plot(
        [at for at, _ in trace], [log for _, log in trace], color=light("blue"), lw=2, label="all settings"
    )
    axes.axhline(
        -math.log10(error_rate), color=light("red"), ls="--", lw=1, label="threshold for a difference"
    )
    axes.plot([], [], color=light("grey"), lw=0.8, label="single settings (scaled to the same width)")
    axes.set(xlabel="samples", ylabel="evidence (log10 of the e-value)")
    axes.legend()
    return figure


def draw_frequencies(rows: list[tuple[str, list[Any]]]) -> Figure:
    """Observed against expected frequencies of output prefixes, one panel per row."""
    columns = min(4, len(rows))
    lines = math.ceil(len(rows) / columns)
    figure, grid = new_grid(2.6 * columns, 2.5 * lines, lines, columns)
    for axes, (name, points) in zip(grid, rows, strict=False):
        axes.plot([1e-4, 1], [1e-4, 1], color=light("grey"), lw=0.8)
        expected = [max(x, 1e-4) for x, _ in points]
        axes.plot(
            expected,
            [max(y, 1e-4) for _, y in points],
            ".",
            color=light("blue"),
            ms=4,
            alpha=0.7,
            clip_on=False,
        )
        axes.set(xscale="log", yscale="log", xlim=(1e-4, 1.2), ylim=(1e-4, 1.2))
        axes.set_title(name, fontsize=8, parse_math=False)
        axes.tick_params(labelsize=7)
    for axes in grid[len(rows) :]:
        axes.set_visible(False)
    figure.supxlabel("expected", fontsize=9)
    figure.supylabel("observed", fontsize=9)
    return figure


def draw_gaps(rows: list[dict[str, Any]]) -> Figure:
    """The logit gap at each first difference, and the near-tie bound."""
    figure, axes = new_axes(7.5, 0.8 + 0.28 * len(rows))
    for line, row in enumerate(rows):
        colour = light("red") if row["finding"] == "difference" else light("green")
        axes.plot(
            [0, row["bound"]], [line, line], color=light("grey"), lw=6, alpha=0.35, solid_capstyle="butt"
        )
        axes.plot(row["gap"], line, "o", color=colour, ms=6)
    names = [f"{row['name']} at {row['position']}" for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=7, parse_math=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set(xlabel="logit gap in float32 (dot) and near-tie bound (bar)")
    axes.set_xlim(left=0)
    return figure
