"""Throughput, TTFT and ITL by load, of stock vLLM and forerun."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from forerun.bench.stock_load import LoadCell
from forerun.bench.stock_load_ratios import LoadComparison
from forerun.bench.stock_load_record import StockLoadRecord
from forerun.bench.stock_load_table import sorted_cells
from forerun.rendering.palette import light
from forerun.rendering.plots import Axes, Figure, new_grid

_ROWS: Final = (
    ("throughput, tokens/s", ("throughput",)),
    ("TTFT, ms", ("ttft_p50", "ttft_p99")),
    ("ITL, ms", ("itl_p50", "itl_p99")),
)
"""The label and the metrics of each row of panels."""


def draw_stock_load(record: StockLoadRecord) -> Figure:
    """A column per text and temperature; rows are throughput, TTFT and ITL. Solid: median, dashed: p99."""
    cells = sorted_cells(record)
    columns = list(dict.fromkeys((cell.text, cell.temperature) for cell in cells))
    width, height = 1.2 + 2.5 * max(1, len(columns)), 7.2
    figure, panels = new_grid(width, height, len(_ROWS), max(1, len(columns)), sharey="row")
    for number, (label, metrics) in enumerate(_ROWS):
        for axes, column in zip(panels[number * len(columns) :], columns, strict=False):
            some = {cell: record.compare(cell) for cell in cells if (cell.text, cell.temperature) == column}
            _draw_panel(axes, some, metrics)
            if number == 0:
                axes.set_title(f"{column[0]}, temperature {column[1]:g}", fontsize=9.5)
        if columns:
            panels[number * len(columns)].set_ylabel(label)
    if columns:
        panels[0].set_ylim(bottom=0)  # once the limits of the row include every panel
        panels[0].legend(loc="upper left", fontsize=8)
        panels[len(columns)].legend(loc="upper left", fontsize=8)
    return figure


def _draw_panel(axes: Axes, some: dict[LoadCell, LoadComparison], metrics: Sequence[str]) -> None:
    """Both systems at each load of one text and temperature. A line joins loads of one kind only."""
    loads = [str(cell.load) for cell in some]
    for metric, line in zip(metrics, ("-", "--"), strict=False):
        percentile = f" {metric[-3:]}" if len(metrics) > 1 else ""
        for name, colour in (("stock", light("grey")), ("forerun", light("green"))):
            label = f"{name}{percentile}"
            for kind in dict.fromkeys(cell.load.kind for cell in some):
                points = [
                    (number, (each.stock if name == "stock" else each.other).get(metric, float("nan")))
                    for number, (cell, each) in enumerate(some.items())
                    if cell.load.kind == kind
                ]
                axes.plot(
                    *zip(*points, strict=True), line, color=colour, marker="o", markersize=4, linewidth=1.4,
                    markerfacecolor=colour if line == "-" else "none", label=label,
                )  # fmt: skip
                label = ""
    axes.set_xticks(range(len(loads)), loads, rotation=45, ha="right", fontsize=8)
    axes.grid(visible=True)
    if len(metrics) > 1:
        axes.set_yscale("log")
