"""Acceptance by category, and predicted and measured speedup by draft length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forerun.rendering.palette import TEXT, light
from forerun.rendering.plots import Axes, Figure, add_legend, new_grid, series_colour

_MARKERS = ("o", "s", "^", "D", "v")


def draw_acceptance(found: Mapping[str, Any], overall: str) -> Figure:
    """Results of `forerun theory measure`: one panel for acceptance, one for the speed of every drafter.

    `overall` is the name of the category that has all outputs.
    """
    drafts = list(dict.fromkeys(row["draft"] for row in found["speeds"]))
    num_rows = 1 + len(drafts) // 2
    figure, (acceptance, *speeds) = new_grid(12.0, 4.2 * num_rows, num_rows, 2)
    _draw_rates(acceptance, found["acceptance"], overall)
    for axes in speeds[len(drafts) :]:
        axes.remove()
    for axes, draft in zip(speeds, drafts, strict=False):
        _draw_speeds(axes, draft, [row for row in found["speeds"] if row["draft"] == draft])
    return figure


def _draw_rates(axes: Axes, rows: Sequence[Mapping[str, Any]], overall: str) -> None:
    """The acceptance rate of every draft by category, with a marker for each temperature."""
    names = [name for name in dict.fromkeys(row["category"] for row in rows) if name != overall]
    categories = [overall, *names[::-1]]
    drafts = list(dict.fromkeys(row["draft"] for row in rows))
    temperatures = sorted({row["temperature"] for row in rows})
    for number, draft in enumerate(drafts):
        for marker, temperature in zip(_MARKERS, temperatures, strict=False):
            some = [row for row in rows if (row["draft"], row["temperature"]) == (draft, temperature)]
            shift = (temperatures.index(temperature) + 0.5) / len(temperatures) * 0.5 - 0.25
            axes.plot(
                [row["alpha"] for row in some],
                [categories.index(row["category"]) + shift for row in some],
                marker,
                color=series_colour(number),
                markersize=5,
                label=draft if temperature == temperatures[0] else None,
            )
    axes.set_yticks(range(len(categories)), categories)
    axes.set_xlim(0, 1)
    axes.set_xlabel("acceptance rate")
    marks = ", ".join(
        f"{mark} {temperature:g}" for mark, temperature in zip("●■▲◆▼", temperatures, strict=False)
    )
    axes.set_title(f"Acceptance (temperature {marks})")
    axes.grid(visible=True, axis="x")
    add_legend(axes)


def _draw_speeds(axes: Axes, draft: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Measured speedup with its interval, and the prediction dashed."""
    axes.axhline(1.0, color=light(TEXT), linewidth=1)
    for number, temperature in enumerate(sorted({row["temperature"] for row in rows})):
        some = [row for row in rows if row["temperature"] == temperature]
        lengths = [row["draft_length"] for row in some]
        measured = [row["measured"] for row in some]
        whiskers = [
            [row["measured"] - row["interval"][0] for row in some],
            [row["interval"][1] - row["measured"] for row in some],
        ]
        colour = series_colour(number)
        axes.errorbar(
            lengths, measured, yerr=whiskers, fmt="o-", color=colour, label=f"temperature {temperature:g}"
        )
        axes.plot(lengths, [row["predicted"] for row in some], "--", color=colour)
    axes.set_xlabel("draft length")
    axes.set_title(f"{draft}: speedup (dashed: predicted)")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True)
    add_legend(axes)
