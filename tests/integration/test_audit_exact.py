"""`forerun audit exact` as a user runs it, and whether it can say no."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from forerun.audit.exact import claims, mutants
from forerun.audit.exact.claims import HONEST, ClaimKind, cases_of, prove
from forerun.audit.exact.kernel_checks import CLAIMS
from forerun.audit.exact.mutants import MUTANTS, catch
from forerun.audit.exact.run import NUM_ROWS
from forerun.cli.main import app
from forerun.core import block_verification as block_module
from forerun.core import rejection_sampling as reject_module


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


def test_lossy_rules_keep_their_bounds_and_report_their_distance(report: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in report["rows"] if row["kind"] == "lossy"}
    assert all(row["bounded"] for row in rows.values())
    assert rows["lenient, l = 1"]["distance"] == "0"
    assert Fraction(rows["lenient, l = 1/2"]["distance"]) > 0


def test_kernels_agree_bit_for_bit(report: dict[str, Any]) -> None:
    rows = [row for row in report["rows"] if row["kind"] == "kernel"]
    assert [row["name"] for row in rows] == list(CLAIMS)
    assert all(row["agrees"] for row in rows)
    assert report["not_run"] == []


def test_the_progress_bar_knows_how_much_there_is(report: dict[str, Any]) -> None:
    assert len(report["rows"]) == NUM_ROWS


def test_the_whole_audit_takes_less_than_a_minute(report: dict[str, Any]) -> None:
    assert report["seconds"] < 60


@pytest.mark.parametrize(
    ("module", "name", "sabotage"),
    [
        (reject_module, "stands", mutants.stand_by_swapped_ratio),
        (block_module, "residual", mutants.residual_without_weight),
    ],
)
def test_the_audit_fails_when_production_code_is_wrong(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, sabotage: Any
) -> None:
    monkeypatch.setattr(module, name, sabotage)
    subjects = [subject for subject in HONEST if "chains" in subject.name]
    assert not all(prove(subject).held for subject in subjects)


def test_the_command_fails_when_a_claim_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.audit.exact import run as run_module

    broken = claims.Claim("broken", ClaimKind.LOSSLESS, held=False, num_cases=1, num_outcomes=1)
    monkeypatch.setattr(run_module, "run", lambda: iter([broken]))
    result = CliRunner().invoke(app, ["audit", "exact"])
    assert result.exit_code == 1
    assert "NOT exact: broken" in result.output


def test_batches_mix_requests_of_different_depths() -> None:
    for subject in HONEST:
        if len(subject.shapes) > 1:
            shapes = {len(case.shapes[0].parents) for case in next(iter(cases_of(subject)))}
            assert len(shapes) > 1 or "chosen" in subject.name


def test_every_case_plays_at_least_two_rounds() -> None:
    assert all(len(case.shapes) >= 2 for subject in HONEST for cases in cases_of(subject) for case in cases)


def test_an_honest_engine_is_not_taken_for_a_mutant() -> None:
    assert not catch(HONEST[0]).held


def test_the_bound_on_lenience_is_held_for_every_token() -> None:
    """A rule that is lenient only from the second guess on is noticed."""

    def later(forest: Any, p: Any, u: Any, v: Any) -> Any:
        factors = [Fraction(1, 1000) if depth > 1 else Fraction(1) for depth in forest.depth]
        return reject_module.rejection_sample(forest, p, u * np.array(factors, dtype=object), v)

    bound = Fraction(9, 10)
    assert claims.prove_bound("honest", claims.lenient_by(bound), bound).held
    assert not claims.prove_bound("later", later, bound).held


def test_mutants_differ_in_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
