"""The template of self-contained HTML reports: no scripts, no network, the reader's colour scheme."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import Template
from typing import Any

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>forerun: $title</title>
<style>
:root { color-scheme: light dark; --ink: #23272e; --ground: #ffffff; --faint: #f4f5f7; --line: #dfe2e7;
  --ours: #1a7f5a; --invalid: #c0392b; --quiet: #68707c }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --ground: #15181c; --faint: #1e2228;
  --line: #343a43; --ours: #4cc38a; --invalid: #ff7b6b; --quiet: #98a1ad } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  max-width: 76rem; margin: 2.5rem auto; padding: 0 1.2rem }
h1 { font-size: 1.6rem; line-height: 1.25; margin-bottom: .3rem }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .4rem }
p.sub, figcaption, .quiet { color: var(--quiet) } figcaption { font-size: .88rem; margin-top: .2rem }
ul.findings { padding-left: 1.1rem; font-size: 1.05rem } ul.findings li { margin: .35rem 0 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .86rem; width: 100% }
th, td { padding: .32rem .4rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap;
  font-variant-numeric: tabular-nums }
th { font-weight: 600; color: var(--quiet); white-space: normal; vertical-align: bottom }
th:first-child, td:first-child, th.output, td.output { text-align: left }
td.output { white-space: normal; min-width: 8rem } tr.ours td { color: var(--ours); font-weight: 600 }
tr.invalid td { color: var(--invalid) } .small { font-size: .78rem; color: var(--quiet) }
.interval { display: block; font-weight: 400 }
figure { margin: .6rem 0 } .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1.2rem }
@media (max-width: 52rem) { .pair { grid-template-columns: minmax(0, 1fr) }
  figure.wide svg { max-width: none; width: 44rem } }
svg { max-width: 100%; height: auto } svg text { font-family: system-ui, sans-serif !important }
details { margin-top: 2rem } pre { overflow-x: auto; background: var(--faint); padding: .8rem;
  font-size: .78rem; border-radius: .4rem }
</style>
</head>
<body>
<h1>$title</h1>
$subtitles
<ul class="findings">$findings</ul>
$sections
<details><summary>Data of this page (JSON)</summary><pre>$facts</pre></details>
</body>
</html>
""")


@dataclass(frozen=True, slots=True)
class Page:
    """A report: title, subtitles, findings, sections of HTML, and the facts in a collapsed block."""

    title: str
    subtitles: Sequence[str]
    findings: Sequence[str]
    sections: Sequence[str]
    facts: Any

    def html(self) -> str:
        """Render the page."""
        return _PAGE.substitute(
            title=escape(self.title),
            subtitles="".join(f'<p class="sub">{escape(each)}</p>' for each in self.subtitles),
            findings="".join(f"<li>{escape(each)}</li>" for each in self.findings),
            sections="\n".join(self.sections),
            facts=escape(json.dumps(self.facts, indent=1, ensure_ascii=False)),
        )
