"""The frame of self-contained HTML pages: no scripts, no network, the reader's colour scheme."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

from forerun.rendering.palette import COLOURS

_PAGE: Final = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
:root { color-scheme: light dark; $light }
@media (prefers-color-scheme: dark) { :root { $dark } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 76rem; margin: 2.2rem auto; padding: 0 1.2rem }
h1 { font-size: 1.5rem; line-height: 1.25; margin-bottom: .3rem }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .4rem } h3 { font-size: 1rem; margin: 1.6rem 0 .4rem }
.faint, figcaption { color: var(--faint) } .small { font-size: .78rem }
figure { margin: .6rem 0 } figcaption { font-size: .88rem; margin-top: .2rem }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1.2rem }
svg { max-width: 100%; height: auto } svg text { font-family: system-ui, sans-serif !important }
.wide { overflow-x: auto }
@media (max-width: 52rem) { .pair { grid-template-columns: minmax(0, 1fr) }
  figure.wide svg { max-width: none; width: 44rem } }
table { border-collapse: collapse; font-size: .88rem }
th, td { padding: .32rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; font-variant-numeric: tabular-nums }
th { font-weight: 600; color: var(--faint); vertical-align: bottom }
th:first-child, td:first-child { text-align: left }
pre { overflow-x: auto; background: var(--panel); padding: .8rem; font-size: .78rem;
  border-radius: .4rem }
details.data { margin-top: 2rem }
$style
</style>
</head>
<body>
$body
</body>
</html>
""")


def write_html_page(file: Path, title: str, body: Iterable[str], style: str = "") -> None:
    """Write a page. `title` is text; the parts of `body` and the additional style rules are markup."""
    light = "; ".join(f"--{name}: {colour.light}" for name, colour in COLOURS.items())
    dark = "; ".join(f"--{name}: {colour.dark}" for name, colour in COLOURS.items())
    page = _PAGE.substitute(
        title=escape(title), light=light, dark=dark, style=style.strip(), body="\n".join(filter(None, body))
    )
    file.write_text(page, encoding="utf-8")


def element(name: str, content: str, css_class: str = "") -> str:
    """An element around markup."""
    attribute = f' class="{css_class}"' if css_class else ""
    return f"<{name}{attribute}>{content}</{name}>"


def text_element(name: str, text: str, css_class: str = "") -> str:
    """An element around text, which is escaped."""
    return element(name, escape(text), css_class)


def text_list(lines: Iterable[str], css_class: str = "") -> str:
    """A list of lines of text; empty without lines."""
    items = "".join(text_element("li", line) for line in lines)
    return element("ul", items, css_class) if items else ""


def table(head: Iterable[str], rows: Iterable[str]) -> str:
    """A table that scrolls on narrow screens, from cells of the head and from whole rows of markup."""
    return element("div", element("table", element("tr", "".join(head)) + "".join(rows)), "wide")


def figure(svg: str, caption: str, *, wide: bool = False) -> str:
    """A figure with its caption; a wide one scrolls on narrow screens, so that its labels stay readable."""
    return element("figure", svg + text_element("figcaption", caption), "wide" if wide else "")


def json_block(values: Any) -> str:
    """Values as indented JSON."""
    return text_element("pre", json.dumps(values, indent=1, ensure_ascii=False))


def collapsed(summary: str, content: str) -> str:
    """Markup behind a summary, which is text."""
    return element("details", text_element("summary", summary) + content, "data")
