"""A benchmark, drawn: speed by category, throughput by load, what stands by depth, waiting between tokens.

Figures are made for pages of any colour: what matplotlib draws in ink becomes the colour of the page's text.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import numpy as np

from forerun.bench.summary import ALL, SystemResult
from forerun.bench.systems import FORERUN, FORERUN_DRAFT
from forerun.plots import pyplot

INK: Final = "#23272e"
OURS: Final = "#1a7f5a"
PLAIN: Final = "#8a8f98"
OURS_TOO: Final = "#6fb58f"
DASHES: Final = ("--", ":", "-.")
OTHERS: Final = ("#d9822b", "#3b6fb6", "#a4508b", "#c2b02f", "#5aa7a7", "#b0413e", "#7a6a4f")

Figure = Any


@dataclass(frozen=True, slots=True)
class Look:
    """How somebody is drawn."""

    colour: str
    dashes: str = "-"

    def points(self, *, sound: bool) -> dict[str, str]:
        """Hollow ones for what is not sound."""
        return {"color": self.colour, "markerfacecolor": self.colour if sound else "none"}


def looks(results: Sequence[SystemResult]) -> dict[str, Look]:
    """How everybody is drawn: ours in green, plain ones grey with dashes of their own, the rest by order."""
    names = dict.fromkeys(each.who for each in results)
    plain = dict.fromkeys(each.baseline for each in results)
    ours = {FORERUN: Look(OURS), FORERUN_DRAFT: Look(OURS_TOO)}
    others = [name for name in names if name not in plain and name not in ours]
    return (
        dict(zip(others, map(Look, cycle(OTHERS)), strict=False))
        | {name: Look(PLAIN, dashes) for name, dashes in zip(plain, cycle(DASHES), strict=False)}
        | ours
    )


def draw_speed(results: Sequence[SystemResult]) -> Figure:
    """Speed over plain decoding by category, with intervals; hollow where the words were not right."""
    some = [each for each in results if each.who != each.baseline and each.overall is not None]
    categories = list(dict.fromkeys(name for each in some for name in each.by_category if name != ALL))
    rows = [*categories, ALL]
    look = looks(results)
    figure, axes = axes_of(10.4, 1.0 + 0.115 * len(rows) * (len(some) + 2))
    axes.axvline(1.0, color=INK, linewidth=1)
    for number, each in enumerate(some):
        shift = (number + 0.5) / len(some) * 0.76 - 0.38
        lines = [(row, each.by_category[name]) for row, name in enumerate(rows) if name in each.by_category]
        places = [row + shift for row, _ in lines]
        ratios = [line.over_plain for _, line in lines]
        whiskers = [
            [ratio.value - ratio.low for ratio in ratios],
            [ratio.high - ratio.value for ratio in ratios],
        ]
        axes.errorbar(
            [ratio.value for ratio in ratios], places, xerr=whiskers, fmt="o",
            markersize=5.5, elinewidth=1.4, label=each.who, **look[each.who].points(sound=each.sound),
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [*categories, "all"])
    axes.axhspan(len(rows) - 1.5, len(rows) - 0.5, color=INK, alpha=0.06, linewidth=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("times as fast as its own plain decoding, from the first token to the last")
    axes.grid(axis="x", alpha=0.25)
    legend(axes)
    return figure


def draw_throughput(results: Sequence[SystemResult]) -> Figure:
    """Tokens per second of all requests by how many are asked at once."""
    names = list(dict.fromkeys(each.who for each in results))
    look = looks(results)
    figure, axes = axes_of(6.4, 3.9)
    widths = sorted({each.width for each in results})
    for name in names:
        mine = sorted((each.width, each.throughput) for each in results if each.who == name)
        whole = all(each.sound for each in results if each.who == name)
        axes.plot(
            *zip(*mine, strict=True), look[name].dashes, marker="o", markersize=4.5, label=name,
            linewidth=1.6 if whole else 0.8, **look[name].points(sound=whole),
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("requests at a time")
    axes.set_ylabel("tokens per second, all together")
    axes.grid(alpha=0.25)
    legend(axes)
    return figure


def draw_survival(results: Sequence[SystemResult], deepest: int = 16) -> Figure:
    """The share of steps in which at least so many guesses stood."""
    some = [each for each in results if each.overall is not None and each.overall.survival]
    look = looks(results)
    figure, axes = axes_of(6.4, 3.9)
    for each in some:
        assert each.overall is not None
        values = each.overall.survival[:deepest]
        axes.plot(
            range(1, len(values) + 1), values, "o-", markersize=4, label=each.who,
            **look[each.who].points(sound=each.sound),
        )  # fmt: skip
    axes.set_ylim(0, None)
    axes.set_xlim(0.5, deepest + 0.5)
    axes.set_xlabel("guesses in a row")
    axes.set_ylabel("share of steps in which they stood")
    axes.grid(alpha=0.25)
    legend(axes)
    return figure


def draw_waiting(results: Sequence[SystemResult]) -> Figure:
    """How long a reader waits for the next token: the share of tokens that came within so many ms."""
    look = looks(results)
    figure, axes = axes_of(6.4, 3.9)
    some = [each for each in results if each.between]
    for each in some:
        waits = np.sort(np.array(each.between)) * 1000
        share = np.arange(1, waits.size + 1) / waits.size
        width = 1.6 if each.sound else 0.8
        axes.plot(
            waits, share, look[each.who].dashes, color=look[each.who].colour, label=each.who, linewidth=width
        )
    if some:
        longest = np.percentile([wait for each in some for wait in each.between], 99)
        axes.set_xlim(0, float(longest) * 1300)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("milliseconds after the token before")
    axes.set_ylabel("share of tokens that have come")
    axes.grid(alpha=0.25)
    legend(axes)
    return figure


def as_svg(draw: Callable[[], Figure]) -> str:
    """A figure as an element of a page, in the page's colours, so that it follows the reader's scheme."""
    plt = pyplot()
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "forerun", **_inked()}):
        figure = draw()
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
        plt.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor").replace(OURS, "var(--ours)")


def as_png(draw: Callable[[], Figure], path: Path) -> None:
    """A figure as a file, on white."""
    plt = pyplot()
    with plt.rc_context(_inked()):
        figure = draw()
        figure.savefig(path, dpi=130)
        plt.close(figure)


def _inked() -> dict[str, Any]:
    keys = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    return {**dict.fromkeys(keys, INK), "font.family": "sans-serif", "font.size": 10}


def axes_of(width: float, height: float) -> tuple[Figure, Any]:
    """A figure with one pair of axes."""
    figure, axes = pyplot().subplots(figsize=(width, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend(axes: Any, **where: Any) -> None:
    """Who is who, beside the plot unless told otherwise, if anybody is there."""
    if axes.get_legend_handles_labels()[1]:
        beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axes.legend(frameon=False, fontsize=9, **(where or beside))
