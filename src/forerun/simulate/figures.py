"""Pictures of simulations, drawn with matplotlib (the extra `plots`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from forerun.plots import pyplot

if TYPE_CHECKING:
    from forerun.simulate.scenario import Scenario, ScenarioResult

COLOURS: Final = {"plain": "#8a8f98", "fixed": "#d9822b", "forerun": "#1a7f5a"}


def draw_scenario(scenario: Scenario, answers: Sequence[ScenarioResult], path: Path) -> None:
    """Requests under way, seconds between tokens and guesses over time, for everybody who decides."""
    plt = pyplot()
    figure, rows = plt.subplots(3, 1, figsize=(9, 7), sharex=True, layout="constrained")
    titles = ("Requests in the machines", "Milliseconds from token to token", "Guesses per request and step")
    for axes, title in zip(rows, titles, strict=True):
        axes.set_title(title, loc="left", fontsize=11)
        axes.grid(alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for each in answers:
        name = f"fixed at {scenario.fixed_draft}" if each.who == "fixed" else each.who
        for axes, values in zip(rows, each.history.series(), strict=True):
            axes.plot(each.history.times, values, color=COLOURS[each.who], label=name, linewidth=1.6)
    rows[0].legend(frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(0.55, 1.22))
    rows[1].set_ylim(bottom=0)
    rows[2].set_xlabel("seconds")
    figure.suptitle(
        f"{scenario.name}: {scenario.model} on {scenario.device}", x=0.02, ha="left", weight="bold"
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_grid(cells: Sequence[dict[str, Any]], path: Path) -> None:
    """Speed over plain decoding by chance and batch, a panel for every cost, stationary texts."""
    plt = pyplot()
    mine = [cell for cell in cells if cell["text"] == "stationary"]
    knees = sorted({cell["knee"] for cell in mine})
    chances, batches = (sorted({cell[key] for cell in mine}) for key in ("chance", "batch"))
    figure, panels = plt.subplots(
        1, len(knees), figsize=(3 * len(knees), 3.2), sharey=True, layout="constrained"
    )
    for axes, knee in zip(np.atleast_1d(panels), knees, strict=True):
        values = np.array(
            [[_value(mine, knee, chance, batch) for batch in batches] for chance in chances], dtype=float
        )
        axes.imshow(np.log2(values), cmap="RdYlGn", vmin=-2, vmax=2, origin="lower", aspect="auto")
        axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
        axes.set_yticks(range(len(chances)), [f"{chance:g}" for chance in chances])
        axes.set_title(f"rows cost from {knee} on", fontsize=10)
        axes.set_xlabel("batch")
        for (row, column), value in np.ndenumerate(values):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
    np.atleast_1d(panels)[0].set_ylabel("chance that a guess stands")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _value(cells: Sequence[dict[str, Any]], knee: int, chance: float, batch: int) -> float:
    wanted = (knee, chance, batch)
    found = (cell for cell in cells if (cell["knee"], cell["chance"], cell["batch"]) == wanted)
    return float(next(found)["over_plain"])
