"""Figures of a recommendation."""

from __future__ import annotations

from forerun.rendering.palette import TEXT, light
from forerun.rendering.plots import Figure, add_legend, new_axes, series_colour
from forerun.tune.recommendation import Recommendation


def draw_speedups(advice: Recommendation) -> Figure:
    """A bar with its interval for every choice, and the measured run of the recommended one."""
    predictions = advice.predictions
    figure, axes = new_axes(8.2, 1.0 + 0.45 * len(predictions))
    rows = range(len(predictions))
    colours = [light("green") if each is advice.best else light("grey") for each in predictions]
    ratios = [each.speedup for each in predictions]
    values = [ratio.value for ratio in ratios]
    whiskers = [[ratio.value - ratio.low for ratio in ratios], [ratio.high - ratio.value for ratio in ratios]]
    axes.barh(rows, values, color=colours, height=0.62)
    axes.errorbar(values, rows, xerr=whiskers, fmt="none", ecolor=light(TEXT))
    axes.axvline(1.0, color=light(TEXT), linewidth=1)
    if advice.measured is not None:
        ratio, row = advice.measured.speedup, predictions.index(advice.best)
        spread = [[ratio.value - ratio.low], [ratio.high - ratio.value]]
        axes.errorbar(
            [ratio.value], [row], xerr=spread, fmt="D", color=light(TEXT), markersize=5, label="measured"
        )
        add_legend(axes)
    axes.set_yticks(rows, [each.choice.name for each in predictions])
    axes.invert_yaxis()
    axes.set_xlabel("speedup over non-speculative decoding")
    axes.grid(axis="x")
    return figure


def draw_survival(advice: Recommendation) -> Figure:
    """The share of steps that accept at least 1, 2, ... draft tokens, for every replayed choice."""
    figure, axes = new_axes(6.0, 3.6)
    for number, each in enumerate(advice.predictions):
        if each.survival:
            colour = light("green") if each is advice.best else series_colour(number)
            depths = range(1, len(each.survival) + 1)
            axes.plot(depths, each.survival, "o-", markersize=4, color=colour, label=each.choice.name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("draft tokens")
    axes.set_ylabel("share of steps that accept at least as many")
    axes.grid(visible=True)
    add_legend(axes, loc="best")
    return figure


def draw_costs(advice: Recommendation) -> Figure:
    """Milliseconds of a step by its rows."""
    figure, axes = new_axes(6.0, 3.6)
    rows = [each for each in sorted(advice.costs) if each <= 64]
    axes.plot(rows, [1000 * advice.costs[each] for each in rows], "o-", color=light("green"), markersize=4)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows of a step: requests and their draft tokens")
    axes.set_ylabel("milliseconds")
    axes.grid(visible=True)
    return figure
