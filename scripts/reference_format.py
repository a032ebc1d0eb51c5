"""Markdown for the generated reference pages: tables, code spans, and help text as prose."""

from __future__ import annotations

import re
from collections.abc import Sequence


def table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table. Pipes in a cell are escaped, and a cell is one line."""
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join("| " + " | ".join(_cell(each) for each in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", r"\|")


def code(text: str) -> str:
    """A span of code; nothing for nothing."""
    return f"`{text}`" if text else ""


def prose(text: str) -> str:
    """Help text as Markdown: options and example commands become code, and nothing is taken for HTML."""
    spans = re.split(r"(`[^`]*`)", text)
    return "".join(span if span.startswith("`") else _plain(span) for span in spans)


def _plain(text: str) -> str:
    if example := re.fullmatch(r"([A-Z][\w ]*): (forerun .*)", text):
        return f"{example[1]}: {code(example[2])}"
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"(?<![\w-])(?:--[a-z][\w-]*|-[a-z](?![\w-]))", lambda found: code(found[0]), text)


def bounds(low: float | None, high: float | None, above: float | None = None) -> str:
    """The range of a number, to follow its type; `above` is a bound that is itself excluded."""
    if above is not None:
        return f", above {above:g}" + ("" if high is None else f", at most {high:g}")
    if low is not None and high is not None:
        return f", {low:g} to {high:g}"
    if low is not None:
        return f", at least {low:g}"
    return "" if high is None else f", at most {high:g}"
