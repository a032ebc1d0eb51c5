"""Figures with matplotlib (the extra `plots`): axes in one style, written to a file or inlined as SVG.

Figures are drawn inside `as_svg` or `write_figure`, which set the style; a function that draws takes data and
returns a figure.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from forerun.errors import MissingExtra
from forerun.rendering.palette import COLOURS, SERIES, TEXT, light

Figure = Any
"""A figure of matplotlib, which has no types where it is not installed."""

Axes = Any
"""Axes of matplotlib."""

_DPI: Final = 130

_TEXT_KEYS: Final = (
    "text.color",
    "axes.edgecolor",
    "axes.labelcolor",
    "xtick.color",
    "ytick.color",
    "grid.color",
)
_STYLE: Final[dict[str, Any]] = {
    **dict.fromkeys(_TEXT_KEYS, light(TEXT)),
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "forerun",
}


def require_matplotlib() -> Any:
    """matplotlib; raises `MissingExtra` if it is not installed."""
    try:
        import matplotlib as mpl  # noqa: PLC0415
        import matplotlib.figure  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("matplotlib", "plots") from error
    return mpl


def new_grid(
    width: float, height: float, num_rows: int, num_columns: int, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of this size in inches and its axes, row by row. It uses no display and no global state."""
    figure = require_matplotlib().figure.Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(num_rows, num_columns, squeeze=False, **options).flat)


def new_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of this size in inches with a single pair of axes."""
    figure, (axes,) = new_grid(width, height, 1, 1)
    return figure, axes


def add_legend(axes: Axes, **where: Any) -> None:
    """Add a legend if there are labels, right of the plot unless `where` has other arguments."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(**(where or {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}))


def series_colour(number: int) -> str:
    """The colour of a data series by its number."""
    return SERIES[number % len(SERIES)]


def as_svg(draw: Callable[[], Figure]) -> str:
    """A figure as an `<svg>` element in the colours of the page around it."""
    out = io.StringIO()
    with require_matplotlib().rc_context(_STYLE):
        draw().savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    for name, colour in COLOURS.items():
        text = text.replace(colour.light, "currentColor" if name == TEXT else f"var(--{name})")
    return text[text.index("<svg") :]


def write_figure(draw: Callable[[], Figure], path: Path) -> None:
    """Write a figure to a file, in the format that its suffix names, on a white background."""
    with require_matplotlib().rc_context(_STYLE):
        draw().savefig(path, dpi=_DPI)
