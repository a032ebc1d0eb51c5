"""Scenarios as a table for documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def markdown(scenarios: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """For every scenario and everybody who decides: machines, tokens per pass, waits between tokens."""
    titles = [
        "scenario",
        "who decides",
        "machines",
        "tokens a pass",
        "guesses a pass",
        "between tokens, 50 / 99 %",
    ]
    rows = [titles, ["---", "---", *["---:"] * 4]]
    for name, answers in scenarios.items():
        for each in answers:
            middle, late = (1000 * seconds for seconds in each["between_tokens"])
            rows.append(
                [
                    name,
                    each["who"],
                    "" if each["machines"] is None else f"{each['machines']}",
                    f"{each['tokens_per_pass']:.2f}",
                    f"{each['guesses_per_pass']:.2f}",
                    f"{middle:.1f} / {late:.1f} ms",
                ]
            )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
