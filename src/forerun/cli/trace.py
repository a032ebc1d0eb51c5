"""`forerun trace`: the rounds of a run as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.console import told


def trace(
    file: Annotated[Path, typer.Argument(help="What `forerun generate --trace FILE` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("trace.html"),
) -> None:
    """Draw a trace as one self-contained page: the text in colours, every pass, every round's guesses."""
    from forerun.engines.local.page import write_page
    from forerun.engines.local.stories import read_trace

    with told():
        stories = read_trace(file)
        write_page(stories, output)
    typer.echo(f"{output}: {sum(len(story.rounds) for story in stories)} rounds of {len(stories)} requests")
