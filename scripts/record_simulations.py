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
from forerun.simulate.scenario import BASELINE, FIXED, FORERUN, Scenario, bundled_scenarios, run_scenario
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
) -> None:
    """Run all simulations, which takes about half an hour."""
    record_wrong_estimates(wrong_estimates)
    if only_wrong_estimates:
        return
    figures.mkdir(exist_ok=True)
    recorded: dict[str, Any] = {"scenarios": {}}
    for name in bundled_scenarios():
        scenario = Scenario.read(name)
        scenario_results = []
        for policy in (BASELINE, FIXED, FORERUN):
            scenario_results.append(run_scenario(scenario, policy))
            print(name, policy, json.dumps(scenario_results[-1].values()), flush=True)
        write_figure(partial(draw_scenario, scenario, scenario_results), figures / f"simulate-{name}.png")
        recorded["scenarios"][name] = [each.values() for each in scenario_results]
    recorded["grid"] = list(run_grid(grid()))
    write_figure(partial(draw_grid, recorded["grid"]), figures / "simulate-grid.png")
    facts = provenance("make simulate", ("forerun", "numpy", "numba"), threads=1)
    record.write_text(json.dumps(facts | recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
