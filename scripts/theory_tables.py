"""The tables of docs/theory.md, from the record of `forerun theory measure --json`."""

from __future__ import annotations

from typing import Any

from forerun.theory.tables import TheoryTable, tables


def markdown(record: dict[str, Any]) -> str:
    """Acceptance, predicted and measured speed, the oracle, and lenience."""
    return "\n\n".join([caption(record), *map(_table, tables(record))])


def caption(record: dict[str, Any]) -> str:
    """The conditions of the measurement."""
    settings, machine = record["settings"], record["machine"]
    models = ", ".join(
        f"`{name}` with {size / 1e6:.1f} million parameters"
        for name, size in settings["drafts"].items()
        if size
    )
    return (
        f"{settings['target']} in {settings['dtype']}; draft models: {models or 'none'};"
        f" {settings['num_prompts']} prompts, outputs of up to {settings['max_tokens']} tokens;"
        f" {machine['cpu']}, {machine['threads']} threads. Brackets: 95 % intervals"
        f" over outputs. `{record['command']}`"
    )


def _table(table: TheoryTable) -> str:
    """A title and a Markdown table; all columns but the first are right-aligned."""
    ruler = ("---", *["---:"] * (len(table.columns) - 1))
    lines = [f"| {' | '.join(row)} |" for row in (table.columns, ruler, *table.rows)]
    return "\n".join([f"**{table.title.capitalize()}**", "", *lines])
