"""Advice as a page with plots, and as values."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from forerun.bench.figures.races import as_svg
from forerun.bench.page import Page
from forerun.tune.advice import Advice
from forerun.tune.figures import draw_costs, draw_gains, draw_stands

PREDICTED: Final = (
    "Predicted from plain answers and measured costs; the diamond is the real run of the best, with its 95 %"
    " interval."
)
STANDS: Final = "How often so many guesses in a row stand."
COSTS: Final = "What a pass costs by its rows: where it is flat, guesses are free."


def write_page(advice: Advice, file: Path) -> None:
    """Write the page."""
    title = f"Use {advice.best.choice.name}" if advice.worth_it else "Do not speculate"
    gains, stands, costs = (as_svg(partial(draw, advice)) for draw in (draw_gains, draw_stands, draw_costs))
    sections = [
        f"<h2>What each choice would gain</h2>{_figure(gains, PREDICTED)}",
        f"<div class='pair'>{_figure(stands, STANDS)}{_figure(costs, COSTS)}</div>",
    ]
    subtitle = f"{advice.num_prompts} prompts, plain decoding at {advice.plain_speed:.1f} tokens a second"
    page = Page(title, subtitle, [advice.paragraph()], sections, as_values(advice))
    file.write_text(page.html(), encoding="utf-8")


def as_values(advice: Advice) -> dict[str, Any]:
    """Everything, for machines."""
    return {
        "use": advice.best.choice.name if advice.worth_it else "plain",
        "config": advice.config.model_dump(mode="json", exclude_defaults=True),
        "paragraph": advice.paragraph(),
        "plain_speed": advice.plain_speed,
        "predicted_gain": advice.best.gain,
        "predicted_of_measured": advice.expected,
        "measured": None if advice.measured is None else asdict(advice.measured),
        "predictions": [
            {
                "name": each.choice.name,
                "gain": each.gain,
                "tokens_per_step": each.tokens_per_step,
                "guesses_per_step": each.guesses_per_step,
                "by_a_run": each.measured,
            }
            for each in advice.predictions
        ],
        "costs": advice.costs,
    }


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"
