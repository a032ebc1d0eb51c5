"""The tables of scripts/measure_coupling.py, from its record."""

from __future__ import annotations

from typing import Any, Final

METHODS: Final = {
    "independent": "independent noise",
    "temperature_only": "coupled, temperature only",
    "coupled": "coupled",
    "rejection": "rejection sampling",
}
"""The ways to draft and verify, by their keys in the record."""

MIN_RATIO: Final = 0.85
"""Required acceptance of coupled drafts, relative to rejection sampling."""


def caption(record: dict[str, Any]) -> str:
    """The conditions of the measurement."""
    facts, lines = record["conditions"], record["lines"]
    contexts = [line["num_contexts"] for line in lines]
    penalties = ", ".join(f"{name.removesuffix('_penalty')} {value:g}" for name, value in facts["penalties"])
    return (
        f"{facts['target']} with a draft model of {facts['draft_parameters'] / 1e6:.1f} million parameters,"
        f" {facts['dtype']}; {facts['num_prompts']} prompts of {facts['num_categories']} kinds, outputs of up"
        f" to {facts['max_tokens']} tokens sampled from the target with the settings of each row,"
        f" {min(contexts)} to {max(contexts)} positions per row, {facts['num_draws']} draws per position;"
        f" penalties: {penalties}. Brackets: 95 % confidence interval over prompts"
    )


def tables(record: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Two tables by title, each with its column titles first."""
    lines, length = record["lines"], record["conditions"]["draft_length"]
    columns = ["temperature", "settings", *METHODS.values()]
    first = [
        [
            *_cell_of(line),
            *(f"{line['expected'][name]:.3f} ({line['measured'][name]:.3f})" for name in METHODS),
            f"{line['bound']:.3f}",
            f"{line['entropy']:.2f}",
            _interval(line["ratio"]),
        ]
        for line in lines
    ]
    lengths = [
        [
            *_cell_of(line),
            *(f"{line['accepted_length'][name]:.2f}" for name in METHODS),
            _interval(line["length_ratio"]),
        ]
        for line in lines
    ]
    ratio = "coupled / rejection sampling"
    return {
        "Acceptance of the first draft token, exact (and by draws)": [
            [*columns, "lower bound of coupled", "entropy of p, nats", ratio],
            *first,
        ],
        f"Mean accepted length, K = {length}": [[*columns, ratio], *lengths],
    }


def markdown(record: dict[str, Any]) -> str:
    """The tables with their conditions."""
    parts = [f"{caption(record)}."]
    for title, (heads, *rows) in tables(record).items():
        lines = [heads, ["---:", "---", *["---:"] * (len(heads) - 2)], *rows]
        parts.append(f"**{title}**")
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    return "\n\n".join(parts)


def _cell_of(line: dict[str, Any]) -> list[str]:
    return [f"{line['temperature']:g}", line["settings"]]


def _interval(figures: list[float]) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(*figures)
