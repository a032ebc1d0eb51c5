"""Figures of simulations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from forerun.rendering.palette import SERIES, light
from forerun.rendering.plots import Figure, new_grid

if TYPE_CHECKING:
    from forerun.simulate.scenario import Scenario, ScenarioResult

_COLOURS: Final = (light("grey"), SERIES[0], light("green"))
"""Colours of a scenario's policies, in order: the baseline first."""


def draw_scenario(scenario: Scenario, results: Sequence[ScenarioResult]) -> Figure:
    """Requests per replica, ITL and draft tokens over time, for each policy."""
    figure, rows = new_grid(9, 7, 3, 1, sharex=True)
    titles = ("Requests per replica", "ITL in milliseconds", "Draft tokens per request and step")
    for axes, title in zip(rows, titles, strict=True):
        axes.set_title(title)
        axes.grid(visible=True)
    for each, colour in zip(results, _COLOURS, strict=True):
        name = f"fixed at {scenario.fixed_draft}" if each.policy == "fixed" else each.policy
        for axes, values in zip(rows, each.time_series.series(), strict=True):
            axes.plot(each.time_series.times, values, color=colour, label=name, linewidth=1.6)
    rows[0].legend(ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    rows[1].set_ylim(bottom=0)
    rows[2].set_xlabel("seconds")
    figure.suptitle(
        f"{scenario.name}: {scenario.model} on {scenario.device}", x=0.02, ha="left", weight="bold"
    )
    return figure


def draw_grid(cells: Sequence[dict[str, Any]]) -> Figure:
    """Speedup over the baseline by acceptance probability and batch size, one panel per cost knee, for
    stationary texts.
    """
    stationary = [cell for cell in cells if cell["text"] == "stationary"]
    knees = sorted({cell["knee"] for cell in stationary})
    acceptances, batches = (sorted({cell[key] for cell in stationary}) for key in ("acceptance", "batch"))
    figure, panels = new_grid(3 * len(knees), 3.2, 1, len(knees), sharey=True)
    for axes, knee in zip(panels, knees, strict=True):
        values = np.array(
            [
                [_value(stationary, knee, acceptance, batch) for batch in batches]
                for acceptance in acceptances
            ],
            dtype=float,
        )
        axes.imshow(np.log2(values), cmap="RdYlGn", vmin=-2, vmax=2, origin="lower", aspect="auto")
        axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
        axes.set_yticks(range(len(acceptances)), [f"{acceptance:g}" for acceptance in acceptances])
        axes.set_title(f"compute-bound from {knee} rows")
        axes.set_xlabel("batch")
        for (row, column), value in np.ndenumerate(values):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
    panels[0].set_ylabel("acceptance probability")
    return figure


def _value(cells: Sequence[dict[str, Any]], knee: int, acceptance: float, batch: int) -> float:
    wanted = (knee, acceptance, batch)
    found = (cell for cell in cells if (cell["knee"], cell["acceptance"], cell["batch"]) == wanted)
    return float(next(found)["speedup"])
