"""A trace as an HTML page.

It shows each output with accepted tokens in colour, a bar per step, and the draft tree of every step; with a
draft model, the forward passes of both models on a time axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from forerun.engines.local.trace_reader import RequestTrace, best_rejected
from forerun.engines.local.trace_timeline import STYLE as TIMELINE_STYLE
from forerun.engines.local.trace_timeline import timeline
from forerun.models.model_call import ModelCall
from forerun.rendering.html_page import element, text_element, write_html_page
from forerun.types import ROOT

_STYLE: Final = """
body { max-width: 64rem }
.facts { display: flex; flex-wrap: wrap; gap: .6rem; padding: 0; list-style: none }
.facts li { background: var(--panel); border-radius: .5rem; padding: .45rem .9rem }
.facts b { font-size: 1.15rem; display: block }
.legend span { margin-right: 1.2rem }
.accepted { color: var(--green); background: var(--green-tint) }
.target { color: var(--blue); background: var(--blue-tint) }
.accepted, .target { border-radius: .2rem; padding: .05rem 0 }
.rejected { color: var(--red); text-decoration: line-through }
.prompt, .drafter, .n { color: var(--faint) }
.text { white-space: pre-wrap; overflow-wrap: anywhere; padding: 1rem; border: 1px solid var(--line);
  border-radius: .5rem; line-height: 1.8 }
svg { width: 100%; display: block }
rect.acceptedbar { fill: var(--green) } rect.targetbar { fill: var(--blue) }
svg line { stroke: var(--line) } svg text { fill: var(--faint) }
details { border-bottom: 1px solid var(--line); padding: .25rem 0 }
summary { cursor: pointer; font: .85rem/1.5 ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere }
.n { display: inline-block; min-width: 7.5rem }
ul.tree { font: .8rem/1.5 ui-monospace, monospace; list-style: none; padding-left: 1.2rem;
  border-left: 1px solid var(--line); margin: .1rem 0 .1rem .4rem; white-space: pre-wrap }
"""


def write_page(
    traces: Sequence[RequestTrace], file: Path, calls: Mapping[str, Sequence[ModelCall]] | None = None
) -> None:
    """Write the page of a trace, with the forward passes of its models if there are several."""
    legend = [
        _span("accepted", "accepted draft token"),
        _span("target", "bonus or recovered token"),
        _span("rejected", "rejected draft token"),
        _span("drafter", "drafter, survival probability that the controller used"),
    ]
    body = [
        text_element("h1", "forerun trace"),
        element("p", " ".join(legend), "legend"),
        timeline(calls or {}),
        *(_request(trace) for trace in traces),
    ]
    write_html_page(file, f"forerun trace: {traces[0].prompt[:60] or 'steps'}", body, _STYLE + TIMELINE_STYLE)


def _request(trace: RequestTrace) -> str:
    """One request: its statistics, its output, its steps."""
    return f"""<section>
<h2>Request {escape(trace.id)}</h2>
<ul class="facts">{_facts(trace)}</ul>
<p class="text"><span class="prompt">{escape(trace.prompt)}</span>{_output(trace)}</p>
{_bars(trace)}
<h3>Steps</h3>
{"".join(_step(number, trace) for number in range(len(trace.steps)))}
</section>"""


def _facts(trace: RequestTrace) -> str:
    num_tokens = sum(len(step["tokens"]) for step in trace.steps)
    num_draft_tokens = sum(len(step["draft_tokens"]) for step in trace.steps)
    num_accepted = sum(len(step["accepted"]) for step in trace.steps)
    seconds = trace.steps[-1]["seconds"] - trace.steps[0]["seconds"] if trace.steps else 0.0
    facts = {
        "tokens": str(num_tokens),
        "steps": str(len(trace.steps)),
        "tokens per step": f"{num_tokens / max(1, len(trace.steps)):.2f}",
        "acceptance rate": f"{num_accepted / num_draft_tokens:.0%}"
        if num_draft_tokens
        else "no draft tokens",
        "draft tokens accepted": f"{num_accepted} of {num_draft_tokens}",
        "first to last token": f"{seconds:.2f} s",
        "finish reason": str(trace.result.get("finish_reason", "unknown: the trace is incomplete")),
    }
    return "".join(f"<li><b>{escape(value)}</b>{name}</li>" for name, value in facts.items())


def _output(trace: RequestTrace) -> str:
    """The output, in colours."""
    return "".join(
        _span("accepted" if position < len(step["accepted"]) else "target", token["text"])
        for step in trace.steps
        for position, token in enumerate(step["tokens"])
    )


def _bars(trace: RequestTrace) -> str:
    """Tokens of each step: accepted draft tokens on top of the bonus or recovered one."""
    max_tokens = max((len(step["tokens"]) for step in trace.steps), default=1)
    width, height = min(40, 1000 / max(1, len(trace.steps))), 110 / max(max_tokens, 4)
    bars = []
    for number, step in enumerate(trace.steps):
        num_tokens, num_accepted = len(step["tokens"]), len(step["accepted"])
        num_target = num_tokens - num_accepted
        x, bar_width = number * width, max(width - min(2, width / 5), 0.5)
        tip = (
            f"<title>step {number + 1}: {num_tokens} tokens, {num_accepted} of {len(step['draft_tokens'])}"
            " draft tokens accepted</title>"
        )
        bars.append(
            f"<g>{tip}"
            f'<rect class="targetbar" x="{x:.1f}" y="{120 - num_target * height:.1f}"'
            f' width="{bar_width:.1f}" height="{num_target * height:.1f}"/>'
            f'<rect class="acceptedbar" x="{x:.1f}" y="{120 - num_tokens * height:.1f}"'
            f' width="{bar_width:.1f}" height="{num_accepted * height:.1f}"/></g>'
        )
    return (
        '<svg viewBox="0 0 1000 150" role="img" aria-label="tokens of each step">'
        f"{''.join(bars)}"
        '<line x1="0" y1="120.5" x2="1000" y2="120.5"/>'
        f'<text x="0" y="142" font-size="15">steps 1 to {len(trace.steps)},'
        f" at most {max_tokens} tokens per step</text></svg>"
    )


def _step(number: int, trace: RequestTrace) -> str:
    """A step: a line as in figure 1 of Leviathan et al. (2023), and behind it the draft tree."""
    step = trace.steps[number]
    draft_tokens, accepted, tokens = step["draft_tokens"], step["accepted"], step["tokens"]
    parents = [each["parent"] for each in draft_tokens]
    rejected = best_rejected(parents, accepted) if len(tokens) > len(accepted) else []
    line = [
        *(_span("accepted", _on_one_line(token["text"])) for token in tokens[: len(accepted)]),
        *(_span("rejected", _on_one_line(draft_tokens[node]["text"])) for node in rejected),
        *(_span("target", _on_one_line(token["text"])) for token in tokens[len(accepted) :]),
    ]
    seconds = step["seconds"] - trace.steps[number - 1]["seconds"] if number else None
    head = f'<span class="n">{number + 1:>4}  {"" if seconds is None else f"{1000 * seconds:.0f} ms"}</span>'
    tree = _tree(draft_tokens, accepted, ROOT)
    return f"<details><summary>{head}{''.join(line)}</summary>{tree}</details>"


def _tree(draft_tokens: Sequence[dict[str, Any]], accepted: Sequence[int], parent: int) -> str:
    """The draft tokens below a node, as nested lists; a path of single children stays on one line."""
    children: dict[int, list[int]] = {}
    for node, each in enumerate(draft_tokens):
        children.setdefault(each["parent"], []).append(node)
    items = []
    for node in children.get(parent, []):
        path = [node]
        while len(below := children.get(path[-1], [])) == 1:
            path.append(below[0])
        text = "".join(
            _span("accepted" if each in accepted else "rejected", _on_one_line(draft_tokens[each]["text"]))
            for each in path
        )
        subtree = _tree(draft_tokens, accepted, path[-1])
        items.append(f"<li>{text} {_drafter(draft_tokens[node])}{subtree}</li>")
    return f'<ul class="tree">{"".join(items)}</ul>' if items else ""


def _drafter(draft_token: dict[str, Any]) -> str:
    """The drafter and the survival that the controller used; the drafter's own estimate as a tooltip."""
    used, estimate = draft_token["survival"], draft_token.get("drafter_survival")
    drafter = f"{draft_token['drafter']}{', sampled' if draft_token['sampled'] else ''}"
    tip = "" if estimate is None else f' title="the drafter estimated {estimate:.2f}"'
    return f'<span class="drafter"{tip}>{escape(drafter)}{"" if used is None else f" {used:.2f}"}</span>'


def _span(kind: str, text: str) -> str:
    return text_element("span", text, kind)


def _on_one_line(text: str) -> str:
    return text.replace("\n", "⏎")
