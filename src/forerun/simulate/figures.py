"""Plots of simulations with matplotlib (the extra `plots`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from forerun.plots import pyplot

if TYPE_CHECKING:
    from forerun.simulate.scenario import Scenario, ScenarioResult

COLOURS: Final = {"baseline": "#8a8f98", "fixed": "#d9822b", "forerun": "#1a7f5a"}


def draw_scenario(scenario: Scenario, results: Sequence[ScenarioResult], path: Path) -> None:
    """Requests per replica, ITL and draft tokens over time, for each policy."""
    plt = pyplot()
    figure, rows = plt.subplots(3, 1, figsize=(9, 7), sharex=True, layout="constrained")
    titles = ("Requests per replica", "ITL in milliseconds", "Draft tokens per request and step")
    for axes, title in zip(rows, titles, strict=True):
        axes.set_title(title, loc="left", fontsize=11)
        axes.grid(alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for each in results:
        name = f"fixed at {scenario.fixed_draft}" if each.policy == "fixed" else each.policy
        for axes, values in zip(rows, each.time_series.series(), strict=True):
            axes.plot(each.time_series.times, values, color=COLOURS[each.policy], label=name, linewidth=1.6)
    rows[0].legend(frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(0.55, 1.22))
    rows[1].set_ylim(bottom=0)
    rows[2].set_xlabel("seconds")
    figure.suptitle(
        f"{scenario.name}: {scenario.model} on {scenario.device}", x=0.02, ha="left", weight="bold"
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_grid(cells: Sequence[dict[str, Any]], path: Path) -> None:
    """Speedup over the baseline by acceptance probability and batch size, one panel per cost knee, for
    stationary texts.
    """
    plt = pyplot()
    stationary = [cell for cell in cells if cell["text"] == "stationary"]
    knees = sorted({cell["knee"] for cell in stationary})
    acceptances, batches = (sorted({cell[key] for cell in stationary}) for key in ("acceptance", "batch"))
    figure, panels = plt.subplots(
        1, len(knees), figsize=(3 * len(knees), 3.2), sharey=True, layout="constrained"
    )
    for axes, knee in zip(np.atleast_1d(panels), knees, strict=True):
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
        axes.set_title(f"compute-bound from {knee} rows", fontsize=10)
        axes.set_xlabel("batch")
        for (row, column), value in np.ndenumerate(values):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
    np.atleast_1d(panels)[0].set_ylabel("acceptance probability")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _value(cells: Sequence[dict[str, Any]], knee: int, acceptance: float, batch: int) -> float:
    wanted = (knee, acceptance, batch)
    found = (cell for cell in cells if (cell["knee"], cell["acceptance"], cell["batch"]) == wanted)
    return float(next(found)["speedup"])
