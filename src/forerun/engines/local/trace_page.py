"""A trace as one page that needs nothing else: no script, no network.

The text in colours, a bar for every step, and every step with its draft tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

from forerun.engines.local.trace_reader import RequestTrace, best_dropped
from forerun.types import ROOT

_PAGE: Final = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>forerun trace: $title</title>
<style>
:root { color-scheme: light dark; --text: #212529; --page: #ffffff; --panel: #f1f3f5; --line: #dee2e6;
  --faint: #6c757d; --kept: #237032; --keptbg: #e6f4ea; --own: #1c5fb0; --ownbg: #e3eefb;
  --dropped: #c92a2a; --keptbar: #40a85b; --ownbar: #1c5fb0 }
@media (prefers-color-scheme: dark) {
:root { --text: #dee2e6; --page: #16191d; --panel: #24292f; --line: #3a4149;
  --faint: #9aa3ad; --kept: #7bd88f; --keptbg: #173a22; --own: #8fc1ff; --ownbg: #16304f;
  --dropped: #ff8787; --keptbar: #40a85b; --ownbar: #4d8fe0 }
}
body { font: 16px/1.55 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--text); background: var(--page) }
h1 { font-size: 1.4rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin-top: 2.5rem }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem }
.facts { display: flex; flex-wrap: wrap; gap: .6rem; padding: 0; list-style: none }
.facts li { background: var(--panel); border-radius: .5rem; padding: .45rem .9rem }
.facts b { font-size: 1.15rem; display: block }
.legend span { margin-right: 1.2rem }
.kept { color: var(--kept); background: var(--keptbg) }
.own { color: var(--own); background: var(--ownbg) }
.kept, .own { border-radius: .2rem; padding: .05rem 0 }
.dropped { color: var(--dropped); text-decoration: line-through }
.prompt, .by, .n { color: var(--faint) }
.text { white-space: pre-wrap; overflow-wrap: anywhere; padding: 1rem; border: 1px solid var(--line);
  border-radius: .5rem; line-height: 1.8 }
svg { width: 100%; height: auto; display: block }
rect.keptbar { fill: var(--keptbar) } rect.ownbar { fill: var(--ownbar) }
svg line { stroke: var(--line) } svg text { fill: var(--faint) }
details { border-bottom: 1px solid var(--line); padding: .25rem 0 }
summary { cursor: pointer; font: .85rem/1.5 ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere }
.n { display: inline-block; min-width: 7.5rem }
ul.tree { font: .8rem/1.5 ui-monospace, monospace; list-style: none; padding-left: 1.2rem;
  border-left: 1px solid var(--line); margin: .1rem 0 .1rem .4rem; white-space: pre-wrap }
</style>
</head>
<body>
<h1>forerun trace</h1>
<p class="legend"><span class="kept">accepted draft token</span>
<span class="own">bonus or recovered token</span> <span class="dropped">rejected draft token</span>
<span class="by">drafter, and the survival probability with which the controller decided</span></p>
$stories
</body>
</html>
""")


def write_page(stories: Sequence[RequestTrace], file: Path) -> None:
    """Write the page."""
    title = escape(stories[0].prompt[:60]) or "rounds"
    file.write_text(
        _PAGE.substitute(title=title, stories="\n".join(_story(story) for story in stories)),
        encoding="utf-8",
    )


def _story(story: RequestTrace) -> str:
    """One request: its counts, its text, its steps."""
    return f"""<section>
<h2>Request {escape(story.id)}</h2>
<ul class="facts">{_facts(story)}</ul>
<p class="text"><span class="prompt">{escape(story.prompt)}</span>{_text(story)}</p>
{_bars(story)}
<h3>Steps</h3>
{"".join(_round(number, story) for number in range(len(story.rounds)))}
</section>"""


def _facts(story: RequestTrace) -> str:
    num_tokens = sum(len(row["said"]) for row in story.rounds)
    num_guesses = sum(len(row["guesses"]) for row in story.rounds)
    num_kept = sum(len(row["accepted"]) for row in story.rounds)
    num_rounds = max(1, len(story.rounds))
    seconds = story.rounds[-1]["seconds"] - story.rounds[0]["seconds"] if story.rounds else 0.0
    facts = {
        "tokens": str(num_tokens),
        "steps": str(len(story.rounds)),
        "tokens per step": f"{num_tokens / num_rounds:.2f}",
        "draft tokens accepted": f"{num_kept} of {num_guesses}",
        "first to last token": f"{seconds:.2f} s",
        "ended by": str(story.result.get("finish_reason", "unknown: the trace is incomplete")),
    }
    return "".join(f"<li><b>{escape(value)}</b>{name}</li>" for name, value in facts.items())


def _text(story: RequestTrace) -> str:
    """The output, in colours."""
    return "".join(
        _span("kept" if place < len(row["accepted"]) else "own", token["text"])
        for row in story.rounds
        for place, token in enumerate(row["said"])
    )


def _bars(story: RequestTrace) -> str:
    """Tokens of each step: accepted draft tokens on top of the bonus or recovered one."""
    most = max((len(row["said"]) for row in story.rounds), default=1)
    width, height = min(40, 1000 / max(1, len(story.rounds))), 110 / max(most, 4)
    bars = []
    for number, row in enumerate(story.rounds):
        kept, own = len(row["accepted"]), len(row["said"]) - len(row["accepted"])
        x, wide = number * width, max(width - min(2, width / 5), 0.5)
        tip = (
            f"<title>step {number + 1}: {len(row['said'])} tokens, {len(row['guesses'])} draft tokens</title>"
        )
        bars.append(
            f"<g>{tip}"
            f'<rect class="ownbar" x="{x:.1f}" y="{120 - own * height:.1f}" width="{wide:.1f}"'
            f' height="{own * height:.1f}"/>'
            f'<rect class="keptbar" x="{x:.1f}" y="{120 - (own + kept) * height:.1f}" width="{wide:.1f}"'
            f' height="{kept * height:.1f}"/></g>'
        )
    return (
        '<svg viewBox="0 0 1000 150" role="img" aria-label="tokens of each step">'
        f"{''.join(bars)}"
        '<line x1="0" y1="120.5" x2="1000" y2="120.5"/>'
        f'<text x="0" y="142" font-size="15">steps 1 to {len(story.rounds)},'
        f" at most {most} tokens per step</text></svg>"
    )


def _round(number: int, story: RequestTrace) -> str:
    """A step: a line as in figure 1 of Leviathan et al. (2023), and behind it the draft tree."""
    row = story.rounds[number]
    guesses, kept, said = row["guesses"], row["accepted"], row["said"]
    parents = [guess["parent"] for guess in guesses]
    dropped = best_dropped(parents, kept) if len(said) > len(kept) else []
    line = [
        *(_span("kept", _on_one_line(token["text"])) for token in said[: len(kept)]),
        *(_span("dropped", _on_one_line(guesses[node]["text"])) for node in dropped),
        *(_span("own", _on_one_line(token["text"])) for token in said[len(kept) :]),
    ]
    took = row["seconds"] - story.rounds[number - 1]["seconds"] if number else None
    head = f'<span class="n">{number + 1:>4}  {"" if took is None else f"{1000 * took:.0f} ms"}</span>'
    return f"<details><summary>{head}{''.join(line)}</summary>{_tree(guesses, kept, ROOT)}</details>"


def _tree(guesses: Sequence[dict[str, Any]], kept: Sequence[int], parent: int) -> str:
    """The draft tokens below a node, as nested lists; a line of single children stays on one line."""
    items = []
    for node in (n for n, guess in enumerate(guesses) if guess["parent"] == parent):
        line, last = [node], node
        while len(below := [n for n, guess in enumerate(guesses) if guess["parent"] == last]) == 1:
            last = below[0]
            line.append(last)
        text = "".join(
            _span("kept" if n in kept else "dropped", _on_one_line(guesses[n]["text"])) for n in line
        )
        items.append(f"<li>{text} {_by(guesses[node])}{_tree(guesses, kept, last)}</li>")
    return f'<ul class="tree">{"".join(items)}</ul>' if items else ""


def _by(draft_token: dict[str, Any]) -> str:
    """The drafter and the survival that the controller used; the drafter's own estimate as a tooltip."""
    used, stated = draft_token["survival"], draft_token.get("drafter_survival")
    drafter = f"{draft_token['by']}{', drawn' if draft_token['drawn'] else ''}"
    tip = "" if stated is None else f' title="the drafter estimated {stated:.2f}"'
    return f'<span class="by"{tip}>{escape(drafter)}{"" if used is None else f" {used:.2f}"}</span>'


def _span(kind: str, text: str) -> str:
    return f'<span class="{kind}">{escape(text)}</span>'


def _on_one_line(text: str) -> str:
    return text.replace("\n", "⏎")
