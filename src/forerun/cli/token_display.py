"""Accepted, rejected and target tokens as they stream: in colours, or marked in plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from forerun.engines.local.request import Update

LEGEND: Final = (
    "legend: accepted draft token, [-rejected draft token-], {+bonus or recovered token+};"
    " a backslash precedes text that would read as a mark"
)

MARKS: Final = {"accepted": ("", ""), "rejected": ("[-", "-]"), "target": ("{+", "+}")}
"""Marks around the text of a token, as in wdiff. The output is the text without rejected tokens."""

STYLES: Final = {"accepted": "green", "rejected": "red strike dim", "target": "bold blue"}


class Writer(Protocol):
    """Writes the text of tokens; the kind is accepted, rejected or target."""

    def __call__(self, text: str, kind: str) -> None:
        """Write a piece of text."""


class TokenDisplay:
    """Shows the outcome of every step: figure 1 of Leviathan et al. (2023)."""

    def __init__(self, tokenizer: Any, write: Writer) -> None:
        from forerun.models.tokenization import IncrementalDetokenizer

        self._tokenizer = tokenizer
        self._spelling = IncrementalDetokenizer(tokenizer)
        self._write = write

    def update(self, update: Update) -> None:
        """Accepted draft tokens, the best rejected ones behind them, and the target's own token."""
        from forerun.engines.local.trace_reader import best_rejected
        from forerun.engines.local.trace_writer import accepted_nodes
        from forerun.models.tokenization import decode

        accepted = accepted_nodes(update)
        for place, token in enumerate(update.token_ids):
            if place == len(accepted):
                nodes = best_rejected(update.draft.parents.tolist(), accepted)
                rejected = decode(self._tokenizer, update.draft.tokens[nodes].tolist())
                self._write(rejected.replace("\n", "⏎"), "rejected")
            self._write(self._spelling.add(token), "accepted" if place < len(accepted) else "target")
        if update.result is not None:
            self._write(self._spelling.flush(), "target")


def has_colours(console: Console) -> bool:
    """Whether colours reach the reader: not through a pipe, on a dumb terminal, or with NO_COLOR."""
    return console.color_system is not None and not console.no_color


class ColourWriter:
    """Tokens in colours."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, text: str, kind: str) -> None:
        """Write a piece of text in the colour of its kind."""
        from rich.text import Text

        self._console.print(Text(text, style=STYLES[kind]), end="")


class MarkWriter:
    """Tokens with marks around them, from which the output can be recovered exactly."""

    def __init__(self, *, err: bool = False) -> None:
        self._err = err
        self._last = ""

    def __call__(self, text: str, kind: str) -> None:
        """Write a piece of text between the marks of its kind."""
        if not text:
            return
        opening, closing = MARKS[kind]
        ambiguous = {closing} if opening else {begin for begin, _ in MARKS.values() if begin}
        escaped = ""
        last = "" if opening else self._last
        for each in text:
            escaped += f"\\{each}" if each == "\\" or last + each in ambiguous else each
            last = each
        self._last = "" if closing else last
        typer.echo(f"{opening}{escaped}{closing}", nl=False, err=self._err)
