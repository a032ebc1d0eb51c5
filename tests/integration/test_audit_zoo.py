"""The audit's power is itself tested: every defect of the zoo is caught, and the honest server is not."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import binom

from forerun.audit.parity.answer_pairs import ask_both, speaker_of
from forerun.audit.parity.near_ties import NearTieReferee
from forerun.audit.parity.run import judge_greedy, judge_seeded
from forerun.audit.report import AuditVerdict
from forerun.audit.sampled.run import SamplingPlan
from forerun.servers.endpoint import Endpoint, Prompt
from forerun.types import SamplingParams
from zoo.auditing import audit, keeper
from zoo.models import PROMPT, VOCAB, TableModel
from zoo.server import Keeper, serving
from zoo.speculation import Defect

UNBOUNDED = SamplingPlan(num_samples=2048, most_samples=16, at_once=1)
"""The stated sample size: 2048 of each of the four settings, at an error rate of 5 %."""

SAMPLED = [
    Defect.SHARED_NOISE,
    Defect.OTHER_Q,
    Defect.RAW_Q,
    Defect.ARGMAX,
    Defect.PEEKING,
    Defect.NO_RESIDUAL,
    Defect.STALE_PENALTIES,
    Defect.NO_SETTINGS,
    Defect.GARBAGE,
]


@pytest.mark.parametrize("defect", SAMPLED, ids=lambda defect: defect.name.lower())
def test_every_defect_is_caught_by_the_reference(defect: Defect, tmp_path: Path) -> None:
    report = audit(keeper(defect, 1), tmp_path, UNBOUNDED)
    assert report.verdict is AuditVerdict.DIFFERENT
    assert report.verdict.exit_code == 1


def test_a_draft_sampled_in_low_precision_is_caught_with_more_samples(tmp_path: Path) -> None:
    plan = SamplingPlan(num_samples=16_384, most_samples=16, at_once=1)
    assert (
        audit(keeper(Defect.ROUGH_DRAFT, 1), tmp_path, plan, only="top-k 4").verdict is AuditVerdict.DIFFERENT
    )


@pytest.mark.parametrize("defect", SAMPLED, ids=lambda defect: defect.name.lower())
def test_every_defect_is_caught_by_a_plain_server(defect: Defect, tmp_path: Path) -> None:
    subtle = defect in (Defect.PEEKING, Defect.STALE_PENALTIES)
    plan = replace(UNBOUNDED, num_samples=6144) if subtle else UNBOUNDED
    only = "penalties" if defect is Defect.STALE_PENALTIES else "cool, top-p" if subtle else ""
    report = audit(keeper(defect, 1), tmp_path, plan, baseline=keeper(Defect.NONE, 2), only=only)
    assert report.verdict is AuditVerdict.DIFFERENT


def test_what_is_probably_wrong_is_named(tmp_path: Path) -> None:
    broken = audit(keeper(Defect.STALE_PENALTIES, 3), tmp_path, UNBOUNDED)
    assert max(broken.rows, key=lambda row: row["e_value"])["name"] == "penalties"
    ignored = audit(keeper(Defect.NO_SETTINGS, 3), tmp_path, UNBOUNDED)
    assert ignored.reason.endswith("sampling settings ignored")
    assert audit(keeper(Defect.ARGMAX, 3), tmp_path, UNBOUNDED).reason.endswith("likeliest token too often")


@pytest.mark.parametrize("two_samples", [False, True], ids=["one sample", "two samples"])
def test_an_honest_server_passes(two_samples: bool, tmp_path: Path) -> None:
    """100 seeded runs at an error rate of 5 %: at most 5 false alarms, which also is what the law allows."""
    plan = SamplingPlan(num_samples=112, most_samples=16, at_once=1, num_tokens=2, choices=112)
    alarms = 0
    for run in range(100):
        plain = keeper(Defect.NONE, 1000 + run) if two_samples else None
        report = audit(keeper(Defect.NONE, run), tmp_path, plan, baseline=plain, epsilon=0.001)
        assert report.num_samples == 4 * 112
        alarms += report.verdict is AuditVerdict.DIFFERENT
    assert alarms <= 5 <= binom.ppf(0.999, 100, 0.05)


def test_the_law_of_an_honest_server_is_bounded_as_planned(tmp_path: Path) -> None:
    plan = SamplingPlan(target=0.1, most_samples=20_000, at_once=1)
    report = audit(keeper(), tmp_path, plan)
    assert report.verdict is AuditVerdict.SAME
    assert report.tv_bound is not None
    assert report.tv_bound <= 0.105
    assert all(row["tv_bound"] <= 0.105 for row in report.rows)


def test_a_difference_within_epsilon_is_no_difference(tmp_path: Path) -> None:
    """What a server's rounding may do is not held against it, and the same bias beyond that is."""
    plan = SamplingPlan(num_samples=1024, most_samples=16, at_once=1)
    assert audit(keeper(Defect.NO_RESIDUAL, 1), tmp_path, plan, epsilon=0.45).verdict is AuditVerdict.SAME
    assert (
        audit(keeper(Defect.NO_RESIDUAL, 1), tmp_path, plan, epsilon=0.01).verdict is AuditVerdict.DIFFERENT
    )


def greedy(tested: Keeper, referee: NearTieReferee | None) -> AuditVerdict:
    prompts = [Prompt(ids=(*PROMPT, token)) for token in range(VOCAB)]
    with serving(Keeper(tested.target, tested.draft)) as plain, serving(tested) as url:
        requests = [(prompt, SamplingParams(temperature=0.0)) for prompt in prompts]
        with closing(Endpoint(plain)) as one, closing(Endpoint(url)) as other:
            pairs = ask_both(requests, speaker_of(one), speaker_of(other), 12, 1)
            return judge_greedy(pairs, referee, lambda _: None).verdict


def test_greedy_answers_are_the_same_and_a_ratio_at_temperature_0_is_caught() -> None:
    referee = NearTieReferee(TableModel(), ["float32"], bound=0.01)  # type: ignore[arg-type]
    assert greedy(keeper(), referee) is AuditVerdict.SAME
    assert greedy(keeper(Defect.GREEDY_RATIO), referee) is AuditVerdict.DIFFERENT


def test_near_ties_are_not_called_identical() -> None:
    wide = NearTieReferee(TableModel(), ["float32"], bound=100.0)  # type: ignore[arg-type]
    found = greedy(keeper(Defect.GREEDY_RATIO), wide)
    assert found is AuditVerdict.ROUNDING
    assert found.exit_code == 0


def test_greedy_differences_without_a_reference_are_no_verdict() -> None:
    assert greedy(keeper(), None) is AuditVerdict.SAME
    assert greedy(keeper(Defect.GREEDY_RATIO), None) is AuditVerdict.OPEN


def seeded(tested: Keeper) -> AuditVerdict:
    requests = [(Prompt(ids=PROMPT), SamplingParams(seed=seed)) for seed in range(8)]
    with (
        serving(Keeper(tested.target, tested.draft)) as plain,
        serving(tested) as url,
        closing(Endpoint(plain)) as one,
        closing(Endpoint(url)) as other,
    ):
        pairs = ask_both(requests, speaker_of(one), speaker_of(other), 24, 1)
        return judge_seeded(pairs, lambda _: (0.0, 0.001), None, 0.05, lambda _: None).verdict


def test_seeds_that_drift_are_caught_and_honest_ones_pass() -> None:
    assert seeded(keeper()) is AuditVerdict.SAME
    assert seeded(keeper(Defect.SEED_DRIFT)) is AuditVerdict.DIFFERENT


@pytest.mark.parametrize("fault", ["stall", "close", "500", "malformed", "odd"])
def test_faults_of_the_network_are_tried_again_and_counted(fault: str, tmp_path: Path) -> None:
    tested = keeper()
    tested.faults = ["", "", fault, fault]
    plan = SamplingPlan(num_samples=64, most_samples=16, at_once=1)
    report = audit(tested, tmp_path, plan, epsilon=0.01, timeout=0.3)
    assert report.verdict is AuditVerdict.SAME
    assert report.num_samples == 4 * 64
    assert any("faults" in note and "2 x" in note for note in report.notes)


def test_a_server_that_dies_is_no_verdict_and_its_samples_are_kept(tmp_path: Path) -> None:
    tested = keeper()
    tested.always, tested.after = "500", 9
    plan = SamplingPlan(num_samples=256, most_samples=16, at_once=1)
    report = audit(tested, tmp_path, plan, epsilon=0.01)
    assert report.verdict is AuditVerdict.OPEN
    assert report.verdict.exit_code == 2
    kept = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()[1:]]
    assert sum(len(row["tested"]) for row in kept) == report.num_samples > 0

    whole = audit(keeper(seed=4), tmp_path, plan, epsilon=0.01, resume=True)
    assert whole.verdict is AuditVerdict.SAME
    assert whole.num_samples == 4 * 256
    again = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()[1:]]
    assert again[: len(kept)] == kept


def test_evidence_that_was_in_stands_even_if_the_server_falls(tmp_path: Path) -> None:
    tested = keeper(Defect.GARBAGE)
    tested.always, tested.after = "500", 4
    plan = SamplingPlan(num_samples=256, most_samples=16, at_once=1, stop_at=1e200)
    assert audit(tested, tmp_path, plan, epsilon=0.01).verdict is AuditVerdict.DIFFERENT
