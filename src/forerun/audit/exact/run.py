"""The whole exact audit, row by row, so that callers can report progress."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forerun.audit.exact.claims import LOSSLESS_VERIFIERS, Claim, prove, prove_lenient
from forerun.audit.exact.kernel_checks import compare_kernels
from forerun.audit.exact.mutants import MUTANTS, catch, catch_bound
from forerun.audit.exact.token_claims import prove_lenient_greedy, prove_match_target, prove_race

NUM_CLAIMS = 60
"""Number of rows of a whole run; a test checks it."""


def run() -> Iterator[Claim]:
    """Prove every verifier and kernel, and catch every mutant."""
    yield from prove_match_target()
    yield from prove_race()
    yield from (prove(audited) for audited in LOSSLESS_VERIFIERS)
    yield from prove_lenient()
    yield from prove_lenient_greedy()
    yield from compare_kernels()
    yield from (catch(mutant) for mutant in MUTANTS)
    yield catch_bound()


def as_json(row: Claim) -> dict[str, Any]:
    """A row as JSON; its claim has a key of its own: equal, bounded, agrees or caught."""
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
    """The row's verdict as text."""
    if row.held is None:
        return "not run: needs torch"
    return row.kind.value if row.held else f"NOT {row.kind.value}"
