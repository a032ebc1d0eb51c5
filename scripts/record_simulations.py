"""Simulates the grid and every bundled scenario; records the results and draws the figures.

make simulate
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from forerun.bench.provenance import provenance
from forerun.simulate.figures import draw_grid, draw_scenario
from forerun.simulate.grid import grid, run_grid
from forerun.simulate.scenario import BASELINE, FIXED, FORERUN, Scenario, bundled_scenarios, run_scenario

ROOT = Path(__file__).parents[1]


def main(
    record: Path = ROOT / "docs" / "records" / "simulate.json", figures: Path = ROOT / "docs" / "figures"
) -> None:
    """Run all simulations, which takes about a quarter of an hour."""
    figures.mkdir(exist_ok=True)
    results: dict[str, Any] = {"scenarios": {}}
    for name in bundled_scenarios():
        scenario = Scenario.read(name)
        outcomes = []
        for policy in (BASELINE, FIXED, FORERUN):
            outcomes.append(run_scenario(scenario, policy))
            print(name, policy, json.dumps(outcomes[-1].values()), flush=True)
        draw_scenario(scenario, outcomes, figures / f"simulate-{name}.png")
        results["scenarios"][name] = [each.values() for each in outcomes]
    results["grid"] = list(run_grid(grid()))
    draw_grid(results["grid"], figures / "simulate-grid.png")
    facts = provenance("make simulate", ("forerun", "numpy", "numba"), threads=1)
    record.write_text(json.dumps(facts | results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
