"""The recommendation as an HTML page with figures and as JSON values."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from forerun.bench.figures.systems import as_svg
from forerun.bench.html_page import Page
from forerun.bench.systems import strip_directories
from forerun.tune.figures import draw_costs, draw_speedups, draw_survival
from forerun.tune.recommendation import Recommendation

SPEEDUPS: Final = (
    "Predicted from non-speculative outputs and measured step costs; the diamond is the measured run of the"
    " recommendation. Whiskers are 95 % intervals over prompts."
)
SURVIVAL: Final = "Share of steps that accept at least that many draft tokens."
COSTS: Final = "Cost of a step by its rows. Where the curve is flat, verification is free."


def write_page(advice: Recommendation, file: Path) -> None:
    """Write the page."""
    speedups, survival, costs = (
        as_svg(partial(draw, advice)) for draw in (draw_speedups, draw_survival, draw_costs)
    )
    sections = [
        f"<h2>Predicted speedup of each choice</h2>{_figure(speedups, SPEEDUPS, wide=True)}",
        f"<div class='pair'>{_figure(survival, SURVIVAL)}{_figure(costs, COSTS)}</div>",
    ]
    subtitles = [
        f"{advice.num_prompts} prompts, non-speculative decoding at {advice.baseline_speed:.1f} tokens/s",
        f"vLLM flags: {shlex.join(advice.vllm_flags)}",
    ]
    page = Page(advice.headline(), subtitles, [advice.paragraph()], sections, as_values(advice))
    file.write_text(page.html(), encoding="utf-8")


def as_values(advice: Recommendation) -> dict[str, Any]:
    """The recommendation and everything behind it as JSON values."""
    return {
        "use": advice.choice.name,
        "config": advice.config.model_dump(mode="json", exclude_defaults=True),
        "paragraph": advice.paragraph(),
        "baseline_speed": advice.baseline_speed,
        "vllm_flags": [strip_directories(each) for each in advice.vllm_flags],
        "predicted_speedup": advice.best.speedup.value,
        "predicted_speedup_interval": [advice.best.speedup.low, advice.best.speedup.high],
        "predicted_for_measured": advice.predicted.value,
        "predicted_for_measured_interval": [advice.predicted.low, advice.predicted.high],
        "measured": None if advice.measured is None else asdict(advice.measured),
        "predictions": [
            {
                "name": each.choice.name,
                "speedup": each.speedup.value,
                "interval": [each.speedup.low, each.speedup.high],
                "tokens_per_step": each.tokens_per_step,
                "draft_tokens_per_step": each.draft_tokens_per_step,
                "measured": each.measured,
            }
            for each in advice.predictions
        ],
        "costs": advice.costs,
    }


def _figure(svg: str, caption: str, *, wide: bool = False) -> str:
    """A figure; a wide one scrolls on narrow screens, so that its labels stay readable."""
    name = " class='wide'" if wide else ""
    return f"<figure{name}>{svg}<figcaption>{caption}</figcaption></figure>"
