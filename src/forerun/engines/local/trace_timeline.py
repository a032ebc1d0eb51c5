"""The forward passes of target and draft models on a time axis (figure 5 of Leviathan et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from forerun.models.model_call import ModelCall

MAX_TARGET_CALLS: Final = 80
"""Forward passes of the target that are drawn: the first ones."""

TARGET_WIDTH: Final = 26.0
"""Mean width of a forward pass of the target."""

LANE_HEIGHT, LANE_GAP, LEFT = 26, 10, 90

TARGET: Final = "target"

STYLE: Final = """
.timeline { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; padding: .6rem }
.timeline svg { width: auto; height: auto; max-width: none }
.timeline rect.target { fill: var(--blue) } .timeline rect.draft { fill: var(--green) }
"""


def timeline(calls: Mapping[str, Sequence[ModelCall]]) -> str:
    """An SVG with a lane for each model, or nothing if the trace has no draft model."""
    target = calls.get(TARGET, ())
    if len(calls) < 2 or not target:
        return ""
    shown = target[:MAX_TARGET_CALLS]
    first, last = shown[0].began, shown[-1].ended
    scale = TARGET_WIDTH / (sum(each.ended - each.began for each in shown) / len(shown))
    lanes = [TARGET, *(name for name in calls if name != TARGET)]
    width = LEFT + scale * (last - first) + 10
    height = len(lanes) * (LANE_HEIGHT + LANE_GAP) + 24
    body = "".join(
        _lane(name, number, [each for each in calls[name] if first <= each.began < last], first, scale)
        for number, name in enumerate(lanes)
    )
    return (
        "<h2>Forward passes</h2>"
        f"<p>The first {len(shown)} forward passes of the target, {last - first:.2f} s, and those of the"
        " draft models in that time. The tooltip of a bar has its rows.</p>"
        f'<div class="timeline"><svg viewBox="0 0 {width:.0f} {height}" width="{width:.0f}"'
        f' height="{height}" role="img" aria-label="forward passes over time">{body}'
        f"{_axis(height, first, last, scale)}</svg></div>"
    )


def _lane(name: str, number: int, calls: Sequence[ModelCall], first: float, scale: float) -> str:
    """The forward passes of one model."""
    y = number * (LANE_HEIGHT + LANE_GAP)
    kind = "target" if name == TARGET else "draft"
    bars = "".join(
        f'<rect class="{kind}" x="{LEFT + scale * (each.began - first):.1f}" y="{y}"'
        f' width="{max(scale * (each.ended - each.began) - 0.8, 0.6):.1f}" height="{LANE_HEIGHT}" rx="2">'
        f"<title>{escape(name)}: {each.num_rows} rows, {1000 * (each.ended - each.began):.1f} ms</title>"
        "</rect>"
        for each in calls
    )
    return f'<text x="0" y="{y + 18}" font-size="14">{escape(name)}</text>{bars}'


def _axis(height: int, first: float, last: float, scale: float) -> str:
    """Ticks at round times."""
    step = next(each for each in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 3600) if (last - first) / each <= 12)
    marks = []
    for number in range(int((last - first) / step) + 1):
        x = LEFT + scale * number * step
        marks.append(f'<text x="{x:.1f}" y="{height - 4}" font-size="12">{number * step:g} s</text>')
        marks.append(f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height - 18}"/>')
    return "".join(marks)
