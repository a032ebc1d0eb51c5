"""Results of scenarios as a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from forerun.json_records import rename_keys

_OLD_KEYS: Final = {
    "who": "policy",
    "machines": "replicas_needed",
    "tokens_per_pass": "tokens_per_step",
    "guesses_per_pass": "draft_tokens_per_step",
    "between_tokens": "itl",
}
"""Keys in older records, and their current names."""


def markdown(scenarios: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Replicas needed, tokens per step and ITL for every scenario and policy."""
    titles = ["scenario", "policy", "replicas needed", "tokens/step", "draft tokens/step", "ITL p50 / p99"]
    rows = [titles, ["---", "---", *["---:"] * 4]]
    for name, results in scenarios.items():
        for result in (rename_keys(each, _OLD_KEYS) for each in results):
            p50, p99 = (1000 * seconds for seconds in result["itl"])
            rows.append(
                [
                    name,
                    "baseline" if result["policy"] == "plain" else result["policy"],
                    "" if result["replicas_needed"] is None else f"{result['replicas_needed']}",
                    f"{result['tokens_per_step']:.2f}",
                    f"{result['draft_tokens_per_step']:.2f}",
                    f"{p50:.1f} / {p99:.1f} ms",
                ]
            )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
