"""Regenerate the speed tables of the documents from the records, or check that they are current.

make readme
make readme ARGS=--check
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bench_tune import table_row
from coupling_table import markdown as markdown_of_coupling
from forerun.audit.report_format import format_number
from forerun.bench.findings import losses
from forerun.bench.load import from_rows
from forerun.bench.load_table import lines_of
from forerun.bench.load_table import markdown as markdown_of_load
from forerun.bench.record import BenchRecord
from forerun.bench.report_tables import markdown, vllm_caption
from forerun.bench.stock_load_record import StockLoadRecord
from forerun.bench.stock_load_table import markdown as markdown_of_stock_load
from forerun.bench.summary import summarise
from forerun.simulate.table import markdown as markdown_of_scenarios
from prediction_table import markdown as markdown_of_prediction
from records import read_lines
from theory_tables import markdown as markdown_of_theory

ROOT = Path(__file__).parents[1]
STOCK_LOAD: Final = "bench-stock-load"
"""The record of load as vLLM's client measures it, and the name of its table's markers."""

BENCH, SUSTAINED = "bench.jsonl", "bench-eight.jsonl"
"""The record of all systems, and the record of vLLM and forerun at a sustained concurrency of 8."""

README_SYSTEMS: Final = ("vllm", "vllm-ngram", "vllm-suffix", "forerun")
"""The systems of README's table; docs/benchmarks.md has all of them."""

SUITE: Final = "suite"
"""The record of the audit catalogue, and the name of its table's markers."""

WRONG_ESTIMATES: Final = "wrong-estimates"
"""The record of simulations with wrong estimates, and the name of its table's markers."""

WRONG_ESTIMATES_TITLES: Final = (
    "| estimates, relative to the truth | cells | speedup over the baseline, worst | median |"
    "\n| --- | ---: | ---: | ---: |"
)

TUNE_TITLES: Final = (
    "| prompts | recommended | predicted | measured | best of the sweep | recommended over best | seconds"
    " | seconds of the sweep |\n| --- | --- | ---: | ---: | --- | ---: | ---: | ---: |"
)

AUDIT_TITLES: Final = (
    "| server | verdict | samples | evidence | distance at most | time |"
    "\n| --- | --- | ---: | ---: | ---: | ---: |"
)


def with_table(text: str, table: str, name: str = "") -> str:
    """The document with the table between its markers, which have the table's name if a page has several."""
    title = f"from the record {name}".strip()
    begin, end = f"<!-- {title}: begin -->", f"<!-- {title}: end -->"
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", flags=re.DOTALL)
    if not between.search(text):
        raise typer.BadParameter(f"the document has no markers for a table: expected {begin} ... {end}")
    return between.sub(lambda _: f"{begin}\n{table}\n{end}", text)


def readme_table(records: Path) -> str:
    """Greedy decoding at concurrency 1, for the systems of `README_SYSTEMS`."""
    record = BenchRecord.read(records / BENCH)
    results = [
        each
        for each in summarise(record)
        if each.concurrency == 1 and not each.temperature and each.system in README_SYSTEMS
    ]
    return markdown(results, _caption(record))


def benchmark_tables(records: Path) -> str:
    """All tables of both records, each with the systems that are faster than forerun."""
    batched, sustained = (_tables(BenchRecord.read(records / name)) for name in (BENCH, SUSTAINED))
    title = f"**Sustained concurrency of 8** ([record](records/{SUSTAINED})):"
    return f"{batched}\n\n{title}\n\n{sustained}"


def _tables(record: BenchRecord) -> str:
    results = summarise(record)
    faster = "\n".join(f"- {each}" for each in losses(results)) or "- No system is faster in this record."
    return f"{markdown(results, _caption(record))}\n\nWhere forerun is not the fastest:\n\n{faster}"


def _caption(record: BenchRecord) -> str:
    caption = vllm_caption(record, quote="`")
    return f"Brackets: 95 % confidence interval. Parentheses: tokens per step. {caption}."


def tune_table(records: Path) -> str:
    """A row for each sweep that `forerun tune` was compared with."""
    rows = [
        table_row(file.stem.removeprefix("tune-"), read_lines(file))
        for file in sorted(records.glob("tune-*.json"))
    ]
    return "\n".join([TUNE_TITLES, *rows])


def load_table(records: Path) -> str:
    """Speed under load, by cell."""
    return markdown_of_load(lines_of(from_rows(_read(records / "bench-load.json")["runs"])))


def audit_table(records: Path) -> str:
    """A row for each recorded audit."""
    rows = [_audit_row(name, found) for name, found in _read(records / "audits.json").items()]
    return "\n".join([AUDIT_TITLES, *rows])


def suite_table(records: Path) -> str:
    """The verdict of each check of the catalogue for each recorded server."""
    found = _read(records / "suite.json")
    names = [row["name"] for row in next(iter(found.values()))["rows"]]
    verdicts = {
        server: {row["name"]: row["finding"] for row in each["rows"]} for server, each in found.items()
    }
    lines = [f"| check | {' | '.join(found)} |", f"| --- |{' --- |' * len(found)}"]
    for name in names:
        cells = (verdicts[server].get(name, "") for server in found)
        lines.append(f"| `{name}` | {' | '.join('**fail**' if each == 'fail' else each for each in cells)} |")
    minutes = (f"{sum(row['seconds'] for row in each['rows']) / 60:.0f} min" for each in found.values())
    return "\n".join([*lines, f"| time | {' | '.join(minutes)} |"])


def _audit_row(name: str, found: dict[str, Any]) -> str:
    evidence = "" if found["e_value"] is None else format_number(found["e_value"])
    bound = "" if found["tv_bound"] is None else f"{found['tv_bound']:.3f}"
    samples, seconds = f"{found['num_samples']:,}", f"{found['seconds']:.0f} s"
    return f"| {name} | {found['verdict']} | {samples} | {evidence} | {bound} | {seconds} |"


def coupling_tables(records: Path) -> str:
    """Acceptance of coupled drafts, by temperature and sampling settings."""
    return markdown_of_coupling(_read(records / "coupling.json"))


def prediction_table(records: Path) -> str:
    """Speed with right and wrong predictions."""
    return markdown_of_prediction(_read(records / "prediction.json"))


def theory_tables(records: Path) -> str:
    """Acceptance, predicted and measured speedup of drafts."""
    return markdown_of_theory(_read(records / "theory.json"))


def scenario_table(records: Path) -> str:
    """A row for each simulated scenario and policy."""
    return markdown_of_scenarios(_read(records / "simulate.json")["scenarios"])


def stock_load_table(records: Path, docs: Path) -> str:
    """Load as vLLM's client measures it, with its figure once that is drawn; the record may be partial."""
    table = markdown_of_stock_load(StockLoadRecord.read(records / f"{STOCK_LOAD}.json"))
    figure = f"figures/{STOCK_LOAD}.png"
    shown = f"![Throughput, TTFT and ITL by load]({figure})\n\n" if (docs / figure).exists() else ""
    return shown + table


def wrong_estimates_table(records: Path) -> str:
    """A row for each error of the estimates."""
    rows = [
        f"| {each['error']} | {each['cells']} | {each['worst']:.3f} | {each['median']:.3f} |"
        for each in read_lines(records / f"{WRONG_ESTIMATES}.json")
    ]
    return "\n".join([WRONG_ESTIMATES_TITLES, *rows])


def _read(file: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return record


PAGES: Final = {
    "control.md": ("bench-load.json", load_table),
    "auditing.md": ("audits.json", audit_table),
    "drafters.md": ("coupling.json", coupling_tables),
    "scaling.md": ("simulate.json", scenario_table),
    "theory.md": ("theory.json", theory_tables),
    "vllm.md": ("prediction.json", prediction_table),
}
"""Other pages with a table, the record that it comes from, and the function that formats it."""


def main(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 if a table is not current.")
    ] = False,
    readme: Annotated[Path, typer.Option(help="Document with the table of greedy decoding.")] = (
        ROOT / "README.md"
    ),
    page: Annotated[Path, typer.Option(help="Document with all benchmark tables.")] = (
        ROOT / "docs" / "benchmarks.md"
    ),
    tuning: Annotated[Path, typer.Option(help="Document with the table of tune and sweeps.")] = (
        ROOT / "docs" / "tuning.md"
    ),
    docs: Annotated[Path, typer.Option(help="Directory of the other pages.")] = ROOT / "docs",
    records: Annotated[Path, typer.Option(help="Directory of the records.")] = ROOT / "docs" / "records",
) -> None:
    """Regenerate the tables."""
    tables = {
        readme: readme_table(records),
        page: benchmark_tables(records),
        tuning: tune_table(records),
        **{docs / name: table(records) for name, (file, table) in PAGES.items() if (records / file).exists()},
    }
    texts = {document: document.read_text(encoding="utf-8") for document in tables}
    fresh = {document: with_table(texts[document], table) for document, table in tables.items()}
    if (records / f"{STOCK_LOAD}.json").exists():
        fresh[page] = with_table(fresh[page], stock_load_table(records, page.parent), STOCK_LOAD)
    control = docs / "control.md"
    if (records / f"{WRONG_ESTIMATES}.json").exists():
        fresh[control] = with_table(fresh[control], wrong_estimates_table(records), WRONG_ESTIMATES)
    auditing = docs / "auditing.md"
    if (records / f"{SUITE}.json").exists():
        fresh[auditing] = with_table(fresh[auditing], suite_table(records), SUITE)
    for document, text in fresh.items():
        if not check:
            document.write_text(text, encoding="utf-8")
        elif text != texts[document]:
            typer.echo(f"the table in {document.name} differs from the records: run `make readme`", err=True)
            raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
