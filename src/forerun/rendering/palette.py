"""The colours of report pages and figures, in light and in dark colour schemes."""

from __future__ import annotations

from typing import Final, NamedTuple


class Colour(NamedTuple):
    """A colour in both schemes, as #rrggbb."""

    light: str
    dark: str


TEXT: Final = "text"
"""The name of the colour of text; an inline SVG inherits it."""

COLOURS: Final = {
    TEXT: Colour("#23272e", "#e4e7eb"),
    "page": Colour("#ffffff", "#15181c"),
    "panel": Colour("#f1f3f5", "#22262b"),
    "line": Colour("#dfe2e7", "#363c44"),
    "faint": Colour("#68707c", "#98a1ad"),
    "green": Colour("#1a7f5a", "#4cc38a"),
    "red": Colour("#c92a2a", "#ff8787"),
    "orange": Colour("#d9480f", "#ffa94d"),
    "blue": Colour("#1c64b0", "#7db9fb"),
    "grey": Colour("#868e96", "#868e96"),
    "green-tint": Colour("#e6f4ea", "#173a22"),
    "blue-tint": Colour("#e3eefb", "#16304f"),
}
"""Colours by name; pages have a CSS variable of the same name for each."""

SERIES: Final = ("#d9822b", "#3b6fb6", "#a4508b", "#c2b02f", "#5aa7a7", "#b0413e", "#7a6a4f")
"""Colours of data series, readable in both schemes."""


def light(name: str) -> str:
    """The colour of this name in the light scheme, in which figures are drawn."""
    return COLOURS[name].light
