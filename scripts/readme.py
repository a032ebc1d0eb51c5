"""Make the tables of speeds in the documents again from the record, or fail where one is not what it says.

make readme
make readme ARGS=--check
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from forerun.bench.record import Record
from forerun.bench.report import losses, markdown
from forerun.bench.summary import Result, summarise

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- from the record: begin -->", "<!-- from the record: end -->"


def renewed(text: str, table: str) -> str:
    """A document with the table between its marks."""
    between = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    if not between.search(text):
        raise typer.BadParameter(f"the document has no place for a table: {BEGIN} ... {END}")
    return between.sub(lambda _: f"{BEGIN}\n{table}\n{END}", text)


def everything(results: Sequence[Result]) -> str:
    """All tables, and who is faster than forerun."""
    faster = "\n".join(f"- {each}" for each in losses(results)) or "- Nobody is faster in this record."
    return f"{markdown(results)}\n\nWhere forerun is not the fastest:\n\n{faster}"


def main(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if one is stale.")] = False,
    readme: Annotated[Path, typer.Option(help="Gets the table of greedy answers, one at a time.")] = (
        ROOT / "README.md"
    ),
    page: Annotated[Path, typer.Option(help="Gets everything.")] = ROOT / "docs" / "benchmarks.md",
    record: Path = ROOT / "docs" / "records" / "bench.jsonl",
) -> None:
    """Bring the tables up to date."""
    results = summarise(Record.read(record))
    first = [each for each in results if each.width == 1 and not each.temperature]
    tables = {readme: markdown(first), page: everything(results)}
    texts = {document: document.read_text(encoding="utf-8") for document in tables}
    fresh = {document: renewed(texts[document], table) for document, table in tables.items()}
    for document, text in fresh.items():
        if not check:
            document.write_text(text, encoding="utf-8")
        elif text != texts[document]:
            told = f"the table of {document.name} is not what {record.name} says: run `make readme`"
            typer.echo(told, err=True)
            raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
