"""A trace as one page that needs nothing else: no script, no network.

The text in colours, a bar for every pass, and every round with its tree of guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

from forerun.engines.local.stories import Story, best_dropped
from forerun.types import ROOT

_PAGE: Final = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>forerun trace: $title</title>
<style>
:root { --kept: #2b8a3e; --keptbg: #e6f4ea; --own: #1c5fb0; --ownbg: #e3eefb; --dropped: #c92a2a;
  --faint: #868e96; --line: #dee2e6 }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem;
  color: #212529 }
h1 { font-size: 1.4rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin-top: 2.5rem }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem }
.facts { display: flex; flex-wrap: wrap; gap: .6rem; padding: 0; list-style: none }
.facts li { background: #f1f3f5; border-radius: .5rem; padding: .45rem .9rem }
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
<p class="legend"><span class="kept">guess kept</span><span class="own">the target's own token</span>
<span class="dropped">guess dropped</span></p>
$stories
</body>
</html>
""")


def write_page(stories: Sequence[Story], file: Path) -> None:
    """Write the page."""
    title = escape(stories[0].prompt[:60]) or "rounds"
    file.write_text(
        _PAGE.substitute(title=title, stories="\n".join(_story(story) for story in stories)),
        encoding="utf-8",
    )


def _story(story: Story) -> str:
    """One request: what it took, its text, its passes, its rounds."""
    return f"""<section>
<h2>Request {escape(story.id)}</h2>
<ul class="facts">{_facts(story)}</ul>
<p class="text"><span class="prompt">{escape(story.prompt)}</span>{_text(story)}</p>
{_bars(story)}
<h3>Round by round</h3>
{"".join(_round(number, story) for number in range(len(story.rounds)))}
</section>"""


def _facts(story: Story) -> str:
    num_tokens = sum(len(row["said"]) for row in story.rounds)
    num_guesses = sum(len(row["guesses"]) for row in story.rounds)
    num_kept = sum(len(row["accepted"]) for row in story.rounds)
    num_rounds = max(1, len(story.rounds))
    seconds = story.rounds[-1]["seconds"] - story.rounds[0]["seconds"] if story.rounds else 0.0
    facts = {
        "tokens": str(num_tokens),
        "target passes": str(len(story.rounds)),
        "tokens per pass": f"{num_tokens / num_rounds:.2f}",
        "guesses stood": f"{num_kept} of {num_guesses}",
        "first to last token": f"{seconds:.2f} s",
        "ended by": str(story.result.get("finish_reason", "nothing: cut off")),
    }
    return "".join(f"<li><b>{escape(value)}</b>{name}</li>" for name, value in facts.items())


def _text(story: Story) -> str:
    """What was said, in colours."""
    return "".join(
        _span("kept" if place < len(row["accepted"]) else "own", token["text"])
        for row in story.rounds
        for place, token in enumerate(row["said"])
    )


def _bars(story: Story) -> str:
    """Tokens of each pass: one is the target's own, the others were guessed."""
    most = max((len(row["said"]) for row in story.rounds), default=1)
    width, height = min(40, 1000 / max(1, len(story.rounds))), 110 / max(most, 4)
    bars = []
    for number, row in enumerate(story.rounds):
        kept, own = len(row["accepted"]), len(row["said"]) - len(row["accepted"])
        x, wide = number * width, max(width - min(2, width / 5), 0.5)
        tip = f"<title>pass {number + 1}: {len(row['said'])} tokens, {len(row['guesses'])} guesses</title>"
        bars.append(
            f"<g>{tip}"
            f'<rect x="{x:.1f}" y="{120 - own * height:.1f}" width="{wide:.1f}" height="{own * height:.1f}"'
            ' fill="#1c5fb0"/>'
            f'<rect x="{x:.1f}" y="{120 - (own + kept) * height:.1f}" width="{wide:.1f}"'
            f' height="{kept * height:.1f}" fill="#40a85b"/></g>'
        )
    return (
        '<svg viewBox="0 0 1000 150" role="img" aria-label="tokens of each pass">'
        f"{''.join(bars)}"
        '<line x1="0" y1="120.5" x2="1000" y2="120.5" stroke="#adb5bd"/>'
        f'<text x="0" y="142" font-size="15" fill="#868e96">pass 1 to {len(story.rounds)},'
        f" at most {most} tokens in one</text></svg>"
    )


def _round(number: int, story: Story) -> str:
    """A round: a line as in the paper's figure 1, and behind it the tree."""
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
    """The guesses below a node, as a list of lists; a line of single children stays on one line."""
    items = []
    for node in (n for n, guess in enumerate(guesses) if guess["parent"] == parent):
        line, last = [node], node
        while len(below := [n for n, guess in enumerate(guesses) if guess["parent"] == last]) == 1:
            last = below[0]
            line.append(last)
        text = "".join(
            _span("kept" if n in kept else "dropped", _on_one_line(guesses[n]["text"])) for n in line
        )
        first = guesses[node]
        by = f"{first['by']}{', drawn' if first['drawn'] else ''}"
        chance = "" if first["survival"] is None else f" {first['survival']:.2f}"
        items.append(
            f'<li>{text} <span class="by">{escape(by)}{chance}</span>{_tree(guesses, kept, last)}</li>'
        )
    return f'<ul class="tree">{"".join(items)}</ul>' if items else ""


def _span(kind: str, text: str) -> str:
    return f'<span class="{kind}">{escape(text)}</span>'


def _on_one_line(text: str) -> str:
    return text.replace("\n", "⏎")
