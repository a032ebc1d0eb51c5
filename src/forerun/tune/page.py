"""Advice as a page with plots, and as values."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from forerun.bench.figures.systems import as_svg
from forerun.bench.html_page import Page
from forerun.bench.systems import without_folders
from forerun.tune.figures import draw_costs, draw_gains, draw_stands
from forerun.tune.recommendation import Recommendation

PREDICTED: Final = (
    "Predicted from non-speculative outputs and measured step costs; the diamond is the measured run of the"
    " recommendation. Whiskers are 95 % intervals over prompts."
)
STANDS: Final = "How often so many guesses in a row stand."
COSTS: Final = "What a pass costs by its rows: where it is flat, guesses are free."


def write_page(advice: Recommendation, file: Path) -> None:
    """Write the page."""
    gains, stands, costs = (as_svg(partial(draw, advice)) for draw in (draw_gains, draw_stands, draw_costs))
    sections = [
        f"<h2>What each choice would gain</h2>{_figure(gains, PREDICTED, wide=True)}",
        f"<div class='pair'>{_figure(stands, STANDS)}{_figure(costs, COSTS)}</div>",
    ]
    subtitles = [
        f"{advice.num_prompts} prompts, non-speculative decoding at {advice.plain_speed:.1f} tokens/s",
        f"vLLM flags: {shlex.join(advice.vllm_flags)}",
    ]
    page = Page(advice.headline(), subtitles, [advice.paragraph()], sections, as_values(advice))
    file.write_text(page.html(), encoding="utf-8")


def as_values(advice: Recommendation) -> dict[str, Any]:
    """Everything, for machines."""
    return {
        "use": advice.best.choice.name if advice.worth_it else "plain",
        "config": advice.config.model_dump(mode="json", exclude_defaults=True),
        "paragraph": advice.paragraph(),
        "plain_speed": advice.plain_speed,
        "vllm_flags": [without_folders(each) for each in advice.vllm_flags],
        "predicted_gain": advice.best.gain.value,
        "predicted_gain_interval": [advice.best.gain.low, advice.best.gain.high],
        "predicted_of_measured": advice.expected.value,
        "predicted_of_measured_interval": [advice.expected.low, advice.expected.high],
        "measured": None if advice.measured is None else asdict(advice.measured),
        "predictions": [
            {
                "name": each.choice.name,
                "gain": each.gain.value,
                "interval": [each.gain.low, each.gain.high],
                "tokens_per_step": each.tokens_per_step,
                "guesses_per_step": each.guesses_per_step,
                "by_a_run": each.measured,
            }
            for each in advice.predictions
        ],
        "costs": advice.costs,
    }


def _figure(svg: str, caption: str, *, wide: bool = False) -> str:
    """A figure; a wide one scrolls on narrow screens, so that its labels stay readable."""
    kind = " class='wide'" if wide else ""
    return f"<figure{kind}>{svg}<figcaption>{caption}</figcaption></figure>"
