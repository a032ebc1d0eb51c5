"""Figures of a recommendation."""

from __future__ import annotations

from typing import Any

from forerun.bench.figures.systems import (
    BASELINE_COLOUR,
    FORERUN_COLOUR,
    OTHER_COLOURS,
    TEXT_COLOUR,
    add_legend,
    new_axes,
)
from forerun.tune.recommendation import Recommendation


def draw_speedups(advice: Recommendation) -> Any:
    """A bar with its interval for every choice, and the measured run of the recommended one."""
    predictions = [*advice.predictions]
    figure, axes = new_axes(8.2, 1.0 + 0.45 * len(predictions))
    rows = range(len(predictions))
    colours = [FORERUN_COLOUR if each is advice.best else BASELINE_COLOUR for each in predictions]
    ratios = [each.speedup for each in predictions]
    values = [ratio.value for ratio in ratios]
    whiskers = [[ratio.value - ratio.low for ratio in ratios], [ratio.high - ratio.value for ratio in ratios]]
    axes.barh(rows, values, color=colours, height=0.62)
    axes.errorbar(values, rows, xerr=whiskers, fmt="none", ecolor=TEXT_COLOUR)
    axes.axvline(1.0, color=TEXT_COLOUR, linewidth=1)
    if advice.measured is not None and advice.best in predictions:
        ratio, row = advice.measured.speedup, predictions.index(advice.best)
        spread = [[ratio.value - ratio.low], [ratio.high - ratio.value]]
        axes.errorbar(
            [ratio.value], [row], xerr=spread, fmt="D", color=TEXT_COLOUR, markersize=5, label="measured"
        )
        add_legend(axes)
    axes.set_yticks(rows, [each.choice.name for each in predictions])
    axes.invert_yaxis()
    axes.set_xlabel("speedup over non-speculative decoding")
    axes.grid(axis="x", alpha=0.25)
    return figure


def draw_survival(advice: Recommendation) -> Any:
    """The share of steps that accept at least 1, 2, ... draft tokens, for every replayed choice."""
    figure, axes = new_axes(6.0, 3.6)
    for number, each in enumerate(advice.predictions):
        if each.survival:
            other = OTHER_COLOURS[number % len(OTHER_COLOURS)]
            colour = FORERUN_COLOUR if each is advice.best else other
            depths = range(1, len(each.survival) + 1)
            axes.plot(depths, each.survival, "o-", markersize=4, color=colour, label=each.choice.name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("draft tokens")
    axes.set_ylabel("share of steps that accept at least as many")
    axes.grid(alpha=0.25)
    add_legend(axes, loc="best")
    return figure


def draw_costs(advice: Recommendation) -> Any:
    """Milliseconds of a step by its rows."""
    figure, axes = new_axes(6.0, 3.6)
    rows = [each for each in sorted(advice.costs) if each <= 64]
    axes.plot(rows, [1000 * advice.costs[each] for each in rows], "o-", color=FORERUN_COLOUR, markersize=4)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows of a step: requests and their draft tokens")
    axes.set_ylabel("milliseconds")
    axes.grid(alpha=0.25)
    return figure
