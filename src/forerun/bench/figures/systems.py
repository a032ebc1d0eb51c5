"""Figures of a benchmark: speedup by category, throughput by concurrency, survival by depth, ITL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

import numpy as np

from forerun.bench.ratios import OVERALL
from forerun.bench.summary import SystemResult
from forerun.bench.system_names import FORERUN, FORERUN_DRAFT
from forerun.rendering.palette import SERIES, TEXT, light
from forerun.rendering.plots import Figure, add_legend, new_axes

FORERUN_DRAFT_COLOUR: Final = "#6fb58f"
DASHES: Final = ("--", ":", "-.")

MAX_DEPTH: Final = 16
"""The largest depth of the survival curve."""


@dataclass(frozen=True, slots=True)
class PlotStyle:
    """The line style of a system."""

    colour: str
    dashes: str = "-"

    def markers(self, *, is_valid: bool) -> dict[str, str]:
        """Marker arguments of matplotlib; markers of invalid results are hollow."""
        return {"color": self.colour, "markerfacecolor": self.colour if is_valid else "none"}


def plot_styles(results: Sequence[SystemResult]) -> dict[str, PlotStyle]:
    """The style of each system: forerun green, baselines dashed grey, the others by order."""
    names = dict.fromkeys(each.system for each in results)
    baselines = dict.fromkeys(each.baseline for each in results)
    ours = {FORERUN: PlotStyle(light("green")), FORERUN_DRAFT: PlotStyle(FORERUN_DRAFT_COLOUR)}
    others = [name for name in names if name not in baselines and name not in ours]
    return (
        dict(zip(others, map(PlotStyle, cycle(SERIES)), strict=False))
        | {
            name: PlotStyle(light("grey"), dashes)
            for name, dashes in zip(baselines, cycle(DASHES), strict=False)
        }
        | ours
    )


def draw_speed(results: Sequence[SystemResult]) -> Figure:
    """Speedup by category with confidence intervals; invalid results are hollow."""
    some = [each for each in results if each.system != each.baseline and each.overall is not None]
    categories = list(dict.fromkeys(name for each in some for name in each.by_category if name != OVERALL))
    rows = [*categories, OVERALL]
    styles = plot_styles(results)
    figure, axes = new_axes(10.4, 1.0 + 0.115 * len(rows) * (len(some) + 2))
    axes.axvline(1.0, color=light(TEXT), linewidth=1)
    for number, each in enumerate(some):
        shift = (number + 0.5) / len(some) * 0.76 - 0.38
        lines = [(row, each.by_category[name]) for row, name in enumerate(rows) if name in each.by_category]
        heights = [row + shift for row, _ in lines]
        ratios = [line.speedup for _, line in lines]
        whiskers = [
            [ratio.value - ratio.low for ratio in ratios],
            [ratio.high - ratio.value for ratio in ratios],
        ]
        axes.errorbar(
            [ratio.value for ratio in ratios], heights, xerr=whiskers, fmt="o",
            markersize=5.5, elinewidth=1.4, label=each.system,
            **styles[each.system].markers(is_valid=each.is_valid),
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), rows)
    axes.axhspan(len(rows) - 1.5, len(rows) - 0.5, color=light(TEXT), alpha=0.06, linewidth=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("decoding speed relative to the same engine without speculation")
    axes.grid(axis="x")
    add_legend(axes)
    return figure


def draw_throughput(results: Sequence[SystemResult]) -> Figure:
    """Throughput by concurrency."""
    names = list(dict.fromkeys(each.system for each in results))
    styles = plot_styles(results)
    figure, axes = new_axes(6.4, 3.9)
    concurrencies = sorted({each.concurrency for each in results})
    for name in names:
        points = sorted((each.concurrency, each.throughput) for each in results if each.system == name)
        is_valid = all(each.is_valid for each in results if each.system == name)
        axes.plot(
            *zip(*points, strict=True), styles[name].dashes, marker="o", markersize=4.5, label=name,
            linewidth=1.6 if is_valid else 0.8, **styles[name].markers(is_valid=is_valid),
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(concurrencies, [str(each) for each in concurrencies])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("concurrency")
    axes.set_ylabel("throughput, tokens/s")
    axes.grid(visible=True)
    add_legend(axes)
    return figure


def draw_survival(results: Sequence[SystemResult]) -> Figure:
    """The share of steps that accept at least 1, 2, ... draft tokens."""
    some = [each for each in results if each.overall is not None and each.overall.survival]
    styles = plot_styles(results)
    figure, axes = new_axes(6.4, 3.9)
    for each in some:
        assert each.overall is not None
        values = each.overall.survival[:MAX_DEPTH]
        axes.plot(
            range(1, len(values) + 1), values, "o-", markersize=4, label=each.system,
            **styles[each.system].markers(is_valid=each.is_valid),
        )  # fmt: skip
    axes.set_ylim(0, None)
    axes.set_xlim(0.5, MAX_DEPTH + 0.5)
    axes.set_xlabel("draft tokens")
    axes.set_ylabel("share of steps that accept at least as many")
    axes.grid(visible=True)
    add_legend(axes)
    return figure


def draw_itl(results: Sequence[SystemResult]) -> Figure:
    """The cumulative distribution of inter-token latency."""
    styles = plot_styles(results)
    figure, axes = new_axes(6.4, 3.9)
    some = [each for each in results if each.itls]
    for each in some:
        latencies = np.sort(np.array(each.itls)) * 1000
        share = np.arange(1, latencies.size + 1) / latencies.size
        linewidth = 1.6 if each.is_valid else 0.8
        axes.plot(
            latencies,
            share,
            styles[each.system].dashes,
            color=styles[each.system].colour,
            label=each.system,
            linewidth=linewidth,
        )
    if some:
        longest = np.percentile([itl for each in some for itl in each.itls], 99)
        axes.set_xlim(0, float(longest) * 1300)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("inter-token latency, ms")
    axes.set_ylabel("share of tokens")
    axes.grid(visible=True)
    add_legend(axes)
    return figure
