"""The table of predicted outputs in docs/vllm.md, from the record of scripts/bench_prediction.py."""

from __future__ import annotations

from typing import Any, Final

RATIOS: Final = {
    "prediction / vllm": "with a prediction, over stock vLLM",
    "forerun / vllm": "without one, over stock vLLM",
    "prediction / forerun": "with a prediction, over without",
    "wrong prediction / forerun": "with other text of the same length, over without",
    "100 kB of other text / forerun": "with 100 kB of other text, over without",
}
"""The rows, by their names in the record."""

COUNTED: Final = {
    "forerun": "without a prediction",
    "prediction": "with a prediction",
    "wrong prediction": "with other text of the same length",
    "100 kB of other text": "with 100 kB of other text",
}


def markdown(record: dict[str, Any]) -> str:
    """Ratios of decoding speed, then steps and draft tokens, by the kind of request."""
    kinds = list(dict.fromkeys(row["kind"] for row in record["summary"]))
    settings, machine = record["settings"], record["machine"]
    num = record["summary"][0]["num"]
    lines = [
        f"{num} requests of each kind, one at a time, in random order; {settings['model']} in"
        f" {settings['dtype']} on {machine['threads']} threads of {machine['cpu']}, up to"
        f" {settings['max_tokens']} output tokens, vLLM's default flags. Medians, and quartiles in"
        f" brackets; output identical in {record['identical']}.",
        "",
        f"| decoding speed | {' | '.join(kinds)} |",
        f"| --- |{' ---: |' * len(kinds)}",
    ]
    found = {(row["ratio"], row["kind"]): row for row in record["summary"]}
    for ratio, title in RATIOS.items():
        rows = [found[ratio, kind] for kind in kinds]
        cells = (
            f"{row['median']:.2f} [{row['quartiles'][0]:.2f}, {row['quartiles'][1]:.2f}]" for row in rows
        )
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines += ["", f"| steps, draft tokens | {' | '.join(kinds)} |", f"| --- |{' ---: |' * len(kinds)}"]
    for name, title in COUNTED.items():
        cells = (
            f"{_total(record, kind, 'steps', name):,}, {_total(record, kind, 'draft_tokens', name):,}"
            for kind in kinds
        )
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _total(record: dict[str, Any], kind: str, figure: str, name: str) -> int:
    """The sum of a count over the requests of a kind."""
    return sum(row[figure][name] or 0 for row in record["edits"] if row["kind"] == kind)
