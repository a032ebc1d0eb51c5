"""All exact audits, one row at a time, so that a caller can show them as they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forerun.audit.exact.claims import HONEST, Claim, prove, prove_lenient
from forerun.audit.exact.kernel_checks import compare_kernels
from forerun.audit.exact.mutants import MUTANTS, catch, catch_bound
from forerun.audit.exact.token_claims import prove_follow, prove_lenient_greedy, prove_race

NUM_ROWS = 49
"""How many rows a whole run has; a test holds it to the truth."""


def run() -> Iterator[Claim]:
    """Every verifier, kernel and mutant."""
    yield from prove_follow()
    yield from prove_race()
    yield from (prove(subject) for subject in HONEST)
    yield from prove_lenient()
    yield from prove_lenient_greedy()
    yield from compare_kernels()
    yield from (catch(mutant) for mutant in MUTANTS)
    yield catch_bound()


def as_json(row: Claim) -> dict[str, Any]:
    """A row for machines; what it claims is a key of its own: equal, bounded, agrees or caught."""
    values: dict[str, Any] = {
        "name": row.name,
        "kind": row.kind.name.lower(),
        row.kind.value: row.held,
        "finding": _finding(row),
        "cases": row.num_cases,
        "outcomes": row.num_outcomes,
    }
    if row.distance is not None:
        values |= {"distance": str(row.distance), "distance_float": float(row.distance)}
    return values


def _finding(row: Claim) -> str:
    """The verdict on a row, for its cell of the table."""
    if row.held is None:
        return "not run: needs torch"
    return row.kind.value if row.held else f"NOT {row.kind.value}"
