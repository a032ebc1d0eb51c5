"""Simulates the grid and every bundled scenario; records the results and draws the figures.

make simulate
make simulate ARGS=--only-wrong-estimates
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import typer

from forerun.bench.provenance import provenance
from forerun.rendering.plots import write_figure
from forerun.simulate.figures import draw_grid, draw_scenario
from forerun.simulate.grid import grid, run_grid
from forerun.simulate.scenario import Scenario, bundled_scenarios, run_scenario
from forerun.simulate.wrong_estimates import cells_with_errors, compare_with_baseline, summarise_errors
from records import write_record

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "records"


def record_wrong_estimates(record: Path) -> None:
    """Record the worst and the median speedup for each error of the estimates."""
    lines = summarise_errors(compare_with_baseline(cells_with_errors()))
    facts = provenance("make simulate", ("forerun", "numpy", "numba"), threads=1)
    write_record(lines, facts, record)


def main(
    record: Path = RECORDS / "simulate.json",
    figures: Path = ROOT / "docs" / "figures",
    wrong_estimates: Path = RECORDS / "wrong-estimates.json",
    *,
    only_wrong_estimates: bool = False,
    only: str = "",
) -> None:
    """Run all simulations, which takes about half an hour, or one scenario of the record."""
    recorded: dict[str, Any] = {"scenarios": {}}
    if only:
        recorded = json.loads(record.read_text(encoding="utf-8"))
        recorded["scenarios"][only] = simulate_scenario(only, figures)
        record.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
        return
    record_wrong_estimates(wrong_estimates)
    if only_wrong_estimates:
        return
    figures.mkdir(exist_ok=True)
    for name in bundled_scenarios():
        recorded["scenarios"][name] = simulate_scenario(name, figures)
    recorded["grid"] = list(run_grid(grid()))
    write_figure(partial(draw_grid, recorded["grid"]), figures / "simulate-grid.png")
    facts = provenance("make simulate", ("forerun", "numpy", "numba"), threads=1)
    record.write_text(json.dumps(facts | recorded, indent=1) + "\n", encoding="utf-8")


def simulate_scenario(name: str, figures: Path) -> list[dict[str, Any]]:
    """Run a scenario under each of its policies, and draw it."""
    scenario = Scenario.read(name)
    results = []
    for policy in scenario.policies:
        results.append(run_scenario(scenario, policy))
        print(name, policy, json.dumps(results[-1].values()), flush=True)
    write_figure(partial(draw_scenario, scenario, results), figures / f"simulate-{name}.png")
    return [each.values() for each in results]


if __name__ == "__main__":
    typer.run(main)
