"""The recommendation as an HTML page with figures and as JSON values."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from forerun.bench.served_model import strip_directories
from forerun.rendering.html_page import (
    collapsed,
    element,
    figure,
    json_block,
    text_element,
    write_html_page,
)
from forerun.rendering.plots import as_svg
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
    speed = f"{advice.num_prompts} prompts, non-speculative decoding at {advice.baseline_speed:.1f} tokens/s"
    body = [
        text_element("h1", advice.headline()),
        text_element("p", speed, "faint"),
        text_element("p", f"vLLM flags: {shlex.join(advice.vllm_flags)}", "faint"),
        text_element("p", advice.paragraph()),
        text_element("h2", "Predicted speedup of each choice"),
        figure(speedups, SPEEDUPS, wide=True),
        element("div", figure(survival, SURVIVAL) + figure(costs, COSTS), "pair"),
        collapsed("Data of this page (JSON)", json_block(as_values(advice))),
    ]
    write_html_page(file, f"forerun: {advice.headline()}", body)


def as_values(advice: Recommendation) -> dict[str, Any]:
    """The recommendation and everything behind it as JSON values."""
    return {
        "use": advice.choice.name,
        "config": advice.config.model_dump(mode="json", exclude_defaults=True),
        "paragraph": advice.paragraph(),
        "baseline_speed": advice.baseline_speed,
        "dtype": advice.dtype,
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
