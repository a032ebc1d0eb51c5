"""Figures of a benchmark: speedup by category, throughput by concurrency, survival by depth, ITL.

In SVG, `TEXT_COLOUR` is replaced by the page's text colour, so that figures follow the colour scheme.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import numpy as np

from forerun.bench.summary import OVERALL, SystemResult
from forerun.bench.systems import FORERUN, FORERUN_DRAFT
from forerun.plots import pyplot

TEXT_COLOUR: Final = "#23272e"
FORERUN_COLOUR: Final = "#1a7f5a"
BASELINE_COLOUR: Final = "#8a8f98"
FORERUN_DRAFT_COLOUR: Final = "#6fb58f"
DASHES: Final = ("--", ":", "-.")
OTHER_COLOURS: Final = ("#d9822b", "#3b6fb6", "#a4508b", "#c2b02f", "#5aa7a7", "#b0413e", "#7a6a4f")

Figure = Any


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
    ours = {FORERUN: PlotStyle(FORERUN_COLOUR), FORERUN_DRAFT: PlotStyle(FORERUN_DRAFT_COLOUR)}
    others = [name for name in names if name not in baselines and name not in ours]
    return (
        dict(zip(others, map(PlotStyle, cycle(OTHER_COLOURS)), strict=False))
        | {
            name: PlotStyle(BASELINE_COLOUR, dashes)
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
    axes.axvline(1.0, color=TEXT_COLOUR, linewidth=1)
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
    axes.axhspan(len(rows) - 1.5, len(rows) - 0.5, color=TEXT_COLOUR, alpha=0.06, linewidth=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("decoding speed relative to the same engine without speculation")
    axes.grid(axis="x", alpha=0.25)
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
    axes.grid(alpha=0.25)
    add_legend(axes)
    return figure


def draw_survival(results: Sequence[SystemResult], max_depth: int = 16) -> Figure:
    """The share of steps that accept at least 1, 2, ... draft tokens."""
    some = [each for each in results if each.overall is not None and each.overall.survival]
    styles = plot_styles(results)
    figure, axes = new_axes(6.4, 3.9)
    for each in some:
        assert each.overall is not None
        values = each.overall.survival[:max_depth]
        axes.plot(
            range(1, len(values) + 1), values, "o-", markersize=4, label=each.system,
            **styles[each.system].markers(is_valid=each.is_valid),
        )  # fmt: skip
    axes.set_ylim(0, None)
    axes.set_xlim(0.5, max_depth + 0.5)
    axes.set_xlabel("draft tokens")
    axes.set_ylabel("share of steps that accept at least as many")
    axes.grid(alpha=0.25)
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
    axes.grid(alpha=0.25)
    add_legend(axes)
    return figure


def as_svg(draw: Callable[[], Figure]) -> str:
    """A figure as an SVG element in the colours of the page around it."""
    plt = pyplot()
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "forerun", **_text_colours()}):
        figure = draw()
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
        plt.close(figure)
    text = out.getvalue()
    return (
        text[text.index("<svg") :].replace(TEXT_COLOUR, "currentColor").replace(FORERUN_COLOUR, "var(--ours)")
    )


def as_png(draw: Callable[[], Figure], path: Path) -> None:
    """Write a figure to a PNG file with a white background."""
    plt = pyplot()
    with plt.rc_context(_text_colours()):
        figure = draw()
        figure.savefig(path, dpi=130)
        plt.close(figure)


def _text_colours() -> dict[str, Any]:
    keys = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    return {**dict.fromkeys(keys, TEXT_COLOUR), "font.family": "sans-serif", "font.size": 10}


def new_axes(width: float, height: float) -> tuple[Figure, Any]:
    """A new figure with a single pair of axes."""
    figure, axes = pyplot().subplots(figsize=(width, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def add_legend(axes: Any, **where: Any) -> None:
    """Add a legend if there are labels, right of the plot unless `where` has other arguments."""
    if axes.get_legend_handles_labels()[1]:
        beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axes.legend(frameon=False, fontsize=9, **(where or beside))
