"""Advice, drawn."""

from __future__ import annotations

from typing import Any

from forerun.bench.figures.systems import INK, OTHERS, OURS, PLAIN, axes_of, legend
from forerun.tune.recommendation import Recommendation


def draw_gains(advice: Recommendation) -> Any:
    """A bar for every choice, and the real run of the best."""
    some = [*advice.predictions]
    figure, axes = axes_of(8.2, 1.0 + 0.45 * len(some))
    names = [each.choice.name for each in some]
    paint = [OURS if each is advice.best else PLAIN for each in some]
    gains = [each.gain for each in some]
    whiskers = [[gain.value - gain.low for gain in gains], [gain.high - gain.value for gain in gains]]
    axes.barh(range(len(some)), [gain.value for gain in gains], color=paint, height=0.62)
    axes.errorbar([gain.value for gain in gains], range(len(some)), xerr=whiskers, fmt="none", ecolor=INK)
    axes.axvline(1.0, color=INK, linewidth=1)
    if advice.measured is not None and advice.best in some:
        gain, row = advice.measured.gain, some.index(advice.best)
        spread = [[gain.value - gain.low], [gain.high - gain.value]]
        axes.errorbar([gain.value], [row], xerr=spread, fmt="D", color=INK, markersize=5, label="a real run")
        legend(axes)
    axes.set_yticks(range(len(some)), names)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as plain decoding")
    axes.grid(axis="x", alpha=0.25)
    return figure


def draw_stands(advice: Recommendation) -> Any:
    """How often so many guesses in a row stand, for every choice that was replayed."""
    figure, axes = axes_of(6.0, 3.6)
    for number, each in enumerate(advice.predictions):
        if each.survival:
            colour = OURS if each is advice.best else OTHERS[number % len(OTHERS)]
            depths = range(1, len(each.survival) + 1)
            axes.plot(depths, each.survival, "o-", markersize=4, color=colour, label=each.choice.name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("guesses in a row")
    axes.set_ylabel("share of steps")
    axes.grid(alpha=0.25)
    legend(axes, loc="best")
    return figure


def draw_costs(advice: Recommendation) -> Any:
    """Milliseconds of a pass by its rows."""
    figure, axes = axes_of(6.0, 3.6)
    rows = [each for each in sorted(advice.costs) if each <= 64]
    axes.plot(rows, [1000 * advice.costs[each] for each in rows], "o-", color=OURS, markersize=4)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows of a pass: requests and their guesses")
    axes.set_ylabel("milliseconds")
    axes.grid(alpha=0.25)
    return figure
