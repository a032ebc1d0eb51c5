"""Make the README's table of speeds again from the record, or fail if it is not what the record says.

make readme
make readme ARGS=--check
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from forerun.bench.record import Record
from forerun.bench.report import markdown
from forerun.bench.summary import summarise

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- from the record: begin -->", "<!-- from the record: end -->"


def renewed(text: str, table: str) -> str:
    """A document with the table between its marks."""
    between = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    if not between.search(text):
        raise typer.BadParameter(f"the document has no place for a table: {BEGIN} ... {END}")
    return between.sub(lambda _: f"{BEGIN}\n{table}\n{END}", text)


def main(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if it is stale.")] = False,
    readme: Path = ROOT / "README.md",
    record: Path = ROOT / "docs" / "records" / "bench.jsonl",
) -> None:
    """Bring the table up to date."""
    text = readme.read_text(encoding="utf-8")
    fresh = renewed(text, markdown([each for each in summarise(Record.read(record)) if each.width == 1]))
    if not check:
        readme.write_text(fresh, encoding="utf-8")
    elif fresh != text:
        typer.echo(f"the table of {readme.name} is not what {record.name} says: run `make readme`", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
