"""Play the grid and every scenario that comes with forerun; keep the figures and draw them.

make simulate
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from forerun.bench.provenance import provenance
from forerun.simulate.figures import draw_grid, draw_scenario
from forerun.simulate.grid import grid, play
from forerun.simulate.scenario import FIXED, OURS, PLAIN, Scenario, answer, known

ROOT = Path(__file__).parents[1]


def main(
    record: Path = ROOT / "docs" / "records" / "simulate.json", figures: Path = ROOT / "docs" / "figures"
) -> None:
    """Everything; it takes about a quarter of an hour."""
    figures.mkdir(exist_ok=True)
    kept: dict[str, Any] = {"scenarios": {}}
    for name in known():
        scenario = Scenario.read(name)
        answers = []
        for who in (PLAIN, FIXED, OURS):
            answers.append(answer(scenario, who))
            print(name, who, json.dumps(answers[-1].values()), flush=True)
        draw_scenario(scenario, answers, figures / f"simulate-{name}.png")
        kept["scenarios"][name] = [each.values() for each in answers]
    kept["grid"] = list(play(grid()))
    draw_grid(kept["grid"], figures / "simulate-grid.png")
    facts = provenance("make simulate", ("forerun", "numpy", "numba"), threads=1)
    record.write_text(json.dumps(facts | kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
