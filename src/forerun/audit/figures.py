"""Figures of a report as SVG, drawn with matplotlib (the extra `plots`)."""

from __future__ import annotations

import io
import math
from typing import Any, Final

from forerun.errors import MissingExtra

_TEXT, _GREEN, _RED, _BLUE, _GREY = "#010203", "#2b8a3e", "#c92a2a", "#1971c2", "#868e96"
_VARIABLES: Final = {
    _TEXT: "currentColor",
    _GREEN: "var(--green)",
    _RED: "var(--red)",
    _BLUE: "var(--blue)",
    _GREY: "var(--grey)",
}
"""CSS variables of the page that replace the colours, so that figures follow its colour scheme."""


def draw_evidence(
    trace: list[tuple[int, float]], rows: list[tuple[str, list[Any]]], error_rate: float
) -> str:
    """The e-process over samples: jointly, per row, and the threshold for a difference."""
    figure, axes = _axes(7.5, 3.8)
    total = max([at for at, _ in trace], default=1)
    for _, points in rows:
        last = max([at for at, _ in points], default=1)
        axes.plot([at / last * total for at, _ in points], [log for _, log in points], color=_GREY, lw=0.8)
    axes.plot([at for at, _ in trace], [log for _, log in trace], color=_BLUE, lw=2, label="all settings")
    axes.axhline(-math.log10(error_rate), color=_RED, ls="--", lw=1, label="threshold for a difference")
    axes.plot([], [], color=_GREY, lw=0.8, label="single settings (scaled to the same width)")
    axes.set(xlabel="samples", ylabel="evidence (log10 of the e-value)")
    axes.legend(frameon=False, fontsize=8)
    return _svg(figure)


def draw_frequencies(rows: list[tuple[str, list[Any]]]) -> str:
    """Observed against expected frequencies of output prefixes, one panel per row."""
    columns = min(4, max(1, len(rows)))
    lines = math.ceil(len(rows) / columns)
    figure, grid = _axes(2.6 * columns, 2.5 * lines, lines, columns)
    for axes, (name, points) in zip(grid, rows, strict=False):
        axes.plot([1e-4, 1], [1e-4, 1], color=_GREY, lw=0.8)
        expected = [max(x, 1e-4) for x, _ in points]
        axes.plot(
            expected, [max(y, 1e-4) for _, y in points], ".", color=_BLUE, ms=4, alpha=0.7, clip_on=False
        )
        axes.set(xscale="log", yscale="log", xlim=(1e-4, 1.2), ylim=(1e-4, 1.2))
        axes.set_title(name, fontsize=8, loc="left", parse_math=False)
        axes.tick_params(labelsize=7)
    for axes in grid[len(rows) :]:
        axes.set_visible(False)
    figure.supxlabel("expected", fontsize=9)
    figure.supylabel("observed", fontsize=9)
    return _svg(figure)


def draw_gaps(rows: list[dict[str, Any]]) -> str:
    """The logit gap at each first difference, and the near-tie bound."""
    figure, axes = _axes(7.5, 0.8 + 0.28 * len(rows))
    for line, row in enumerate(rows):
        colour = _RED if row["finding"] == "difference" else _GREEN
        axes.plot([0, row["bound"]], [line, line], color=_GREY, lw=6, alpha=0.35, solid_capstyle="butt")
        axes.plot(row["gap"], line, "o", color=colour, ms=6)
    names = [f"{row['name']} at {row['position']}" for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=7, parse_math=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set(xlabel="logit gap in float32 (dot) and near-tie bound (bar)")
    axes.set_xlim(left=0)
    return _svg(figure)


def _axes(width: float, height: float, lines: int | None = None, columns: int = 1) -> tuple[Any, Any]:
    """A figure and its axes; a list of axes if `lines` is given."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("matplotlib", "plots") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    if lines is not None:
        grid = list(figure.subplots(lines, columns, squeeze=False).flat)
        for each in grid:
            _colour(each)
        return figure, grid
    axes = figure.subplots()
    _colour(axes)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _colour(axes: Any) -> None:
    """Draw the frame and the ticks in the text colour."""
    axes.spines[:].set_color(_TEXT)
    axes.tick_params(which="both", colors=_TEXT)


def _svg(figure: Any) -> str:
    """The figure as an `<svg>` element."""
    from matplotlib.text import Text  # noqa: PLC0415

    out = io.StringIO()
    for each in figure.findobj(Text):
        each.set_color(_TEXT)
    figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return text[text.index("<svg") :]
