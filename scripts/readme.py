"""Make the tables of speeds in the documents again from the records, or fail where one is not what they say.

make readme
make readme ARGS=--check
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from bench_tune import row_of
from forerun.bench.record import BenchRecord
from forerun.bench.report import losses, markdown, vllm_caption
from forerun.bench.summary import summarise

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- from the record: begin -->", "<!-- from the record: end -->"

BENCH, KEPT = "bench.jsonl", "bench-eight.jsonl"
"""Of everybody; and of vLLM and forerun, kept at eight at a time."""

TUNED: Final = (
    "| prompts | what tune says | predicted | measured | best of the sweep | over the best | seconds"
    " | of the sweep |\n| --- | --- | ---: | ---: | --- | ---: | ---: | ---: |"
)


def renewed(text: str, table: str) -> str:
    """A document with the table between its marks."""
    between = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    if not between.search(text):
        raise typer.BadParameter(f"the document has no place for a table: {BEGIN} ... {END}")
    return between.sub(lambda _: f"{BEGIN}\n{table}\n{END}", text)


def everything(records: Path) -> str:
    """All tables, and who is faster than forerun: where several began together, and where they were kept at
    their number.
    """
    together, kept = (_tables(BenchRecord.read(records / name)) for name in (BENCH, KEPT))
    return f"{together}\n\n**Kept at eight at a time** ([record](records/{KEPT})):\n\n{kept}"


def _tables(record: BenchRecord) -> str:
    results = summarise(record)
    faster = "\n".join(f"- {each}" for each in losses(results)) or "- No system is faster in this record."
    return f"{markdown(results, _caption(record))}\n\nWhere forerun is not the fastest:\n\n{faster}"


def _caption(record: BenchRecord) -> str:
    caption = vllm_caption(record, quote="`")
    return f"Brackets: 95 % confidence interval. Parentheses: tokens per step. {caption}."


def tuned(folder: Path) -> str:
    """A row for each kind of prompts that tune was held to a sweep on."""
    files = sorted(folder.glob("tune-*.json"))
    lines = {file.stem.removeprefix("tune-"): json.loads(file.read_text("utf-8"))["lines"] for file in files}
    return "\n".join([TUNED, *(row_of(prompts, some) for prompts, some in lines.items())])


def main(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if one is stale.")] = False,
    readme: Annotated[Path, typer.Option(help="Gets the table of greedy answers, one at a time.")] = (
        ROOT / "README.md"
    ),
    page: Annotated[Path, typer.Option(help="Gets everything.")] = ROOT / "docs" / "benchmarks.md",
    tuning: Annotated[Path, typer.Option(help="Gets what tune says beside sweeps.")] = (
        ROOT / "docs" / "tuning.md"
    ),
    records: Annotated[Path, typer.Option(help="The folder of the records.")] = ROOT / "docs" / "records",
) -> None:
    """Bring the tables up to date."""
    record = BenchRecord.read(records / BENCH)
    results = summarise(record)
    first = [each for each in results if each.width == 1 and not each.temperature]
    tables = {readme: markdown(first, _caption(record)), page: everything(records), tuning: tuned(records)}
    texts = {document: document.read_text(encoding="utf-8") for document in tables}
    fresh = {document: renewed(texts[document], table) for document, table in tables.items()}
    for document, text in fresh.items():
        if not check:
            document.write_text(text, encoding="utf-8")
        elif text != texts[document]:
            told = f"the table of {document.name} is not what the records say: run `make readme`"
            typer.echo(told, err=True)
            raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
