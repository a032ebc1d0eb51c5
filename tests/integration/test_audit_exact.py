"""`forerun audit exact` from the command line, and its failure on wrong code."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from forerun.audit.exact import claims, verifier_mutants
from forerun.audit.exact.claims import LOSSLESS_VERIFIERS, ClaimKind, enumeration_cases, prove
from forerun.audit.exact.kernel_checks import KERNEL_CLAIMS
from forerun.audit.exact.mutants import MUTANTS, catch
from forerun.audit.exact.run import NUM_CLAIMS
from forerun.cli.main import app
from forerun.core import block_verification as block_module
from forerun.core import rejection_sampling as rejection_module


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    result = CliRunner().invoke(app, ["audit", "exact", "--json"])
    assert result.exit_code == 0, result.output
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def test_every_lossless_verifier_is_equal_in_exact_arithmetic(report: dict[str, Any]) -> None:
    rows = [row for row in report["rows"] if row["kind"] == "lossless"]
    assert len(rows) >= 9
    assert all(row["equal"] for row in rows)
    assert all(row.get("distance", "0") == "0" for row in rows)


def test_every_mutant_is_caught(report: dict[str, Any]) -> None:
    rows = [row for row in report["rows"] if row["kind"] == "mutant"]
    assert len(rows) >= 20
    assert all(row["caught"] for row in rows)


def test_lossy_verifiers_keep_their_bounds_and_report_their_distance(report: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in report["rows"] if row["kind"] == "lossy"}
    assert all(row["bounded"] for row in rows.values())
    assert rows["lenient, l = 1"]["distance"] == "0"
    assert Fraction(rows["lenient, l = 1/2"]["distance"]) > 0


def test_kernels_agree_bit_for_bit(report: dict[str, Any]) -> None:
    rows = [row for row in report["rows"] if row["kind"] == "kernel"]
    assert [row["name"] for row in rows] == list(KERNEL_CLAIMS)
    assert all(row["agrees"] for row in rows)
    assert report["not_run"] == []


def test_the_progress_bar_has_the_number_of_claims(report: dict[str, Any]) -> None:
    assert len(report["rows"]) == NUM_CLAIMS


def test_the_whole_audit_enumerates_what_fits_into_about_a_minute(report: dict[str, Any]) -> None:
    assert sum(row.get("outcomes", 0) for row in report["rows"]) < 250_000, "4,000 outcomes take a second"


@pytest.mark.parametrize(
    ("module", "name", "sabotage"),
    [
        (rejection_module, "accepts", verifier_mutants.accept_by_swapped_ratio),
        (block_module, "residual", verifier_mutants.residual_without_weight),
    ],
)
def test_the_audit_fails_when_production_code_is_wrong(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, sabotage: Any
) -> None:
    monkeypatch.setattr(module, name, sabotage)
    verifiers = [audited for audited in LOSSLESS_VERIFIERS if "chains" in audited.name]
    assert not all(prove(audited).held for audited in verifiers)


def test_the_command_fails_when_a_claim_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.audit.exact import run as run_module

    broken = claims.Claim("broken", ClaimKind.LOSSLESS, held=False, num_cases=1, num_outcomes=1)
    monkeypatch.setattr(run_module, "run", lambda: iter([broken]))
    result = CliRunner().invoke(app, ["audit", "exact"])
    assert result.exit_code == 1
    assert "NOT exact: broken" in result.output


def test_batches_mix_requests_of_different_depths() -> None:
    for audited in LOSSLESS_VERIFIERS:
        if len(audited.shapes) > 1:
            shapes = {len(case.shapes[0].parents) for case in next(iter(enumeration_cases(audited)))}
            assert len(shapes) > 1 or "chosen" in audited.name


def test_every_case_runs_at_least_two_steps() -> None:
    assert all(
        len(case.shapes) >= 2
        for audited in LOSSLESS_VERIFIERS
        for cases in enumeration_cases(audited)
        for case in cases
    )


def test_a_lossless_verifier_is_not_caught_as_a_mutant() -> None:
    assert not catch(LOSSLESS_VERIFIERS[0]).held


def test_the_lenience_bound_is_checked_for_every_token() -> None:
    """A verifier that exceeds the bound only from the second draft token on is caught."""

    def later(forest: Any, p: Any, u: Any, v: Any) -> Any:
        factors = [Fraction(1, 1000) if depth > 1 else Fraction(1) for depth in forest.depth]
        return rejection_module.rejection_sample(forest, p, u * np.array(factors, dtype=object), v)

    bound = Fraction(9, 10)
    assert claims.prove_bound("within the bound", claims.with_lenience(bound), bound).held
    assert not claims.prove_bound("later", later, bound).held


def test_mutant_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
