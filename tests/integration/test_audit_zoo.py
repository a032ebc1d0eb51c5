"""The power of the audit: every defect of the zoo is detected, and a server without one passes."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from scipy.stats import binom

from forerun.audit.parity.answer_pairs import request_pairs, server_source
from forerun.audit.parity.near_ties import NearTieReferee
from forerun.audit.parity.run import compare_greedy, compare_identical, compare_seeded
from forerun.audit.report import AuditReport, AuditVerdict
from forerun.audit.sampled.run import SamplingPlan
from forerun.servers.completions import Prompt
from forerun.servers.endpoint import Endpoint
from forerun.types import SamplingParams
from zoo.auditing import audit, zoo_server
from zoo.models import PROMPT, VOCAB, TableModel
from zoo.server import ZooServer, run_server
from zoo.speculation import Defect

UNBOUNDED = SamplingPlan(num_samples=2048, max_samples=16, concurrency=1)
"""The documented sample size: 2048 for each of the four settings, at an error rate of 5 %."""

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
def test_every_defect_is_detected_against_the_reference(defect: Defect, tmp_path: Path) -> None:
    report = audit(zoo_server(defect, 1), tmp_path, UNBOUNDED)
    assert report.verdict is AuditVerdict.DIFFERENT
    assert report.verdict.exit_code == 1


def test_a_draft_sampled_in_bfloat16_is_detected_with_more_samples(tmp_path: Path) -> None:
    plan = SamplingPlan(num_samples=16_384, max_samples=16, concurrency=1)
    assert (
        audit(zoo_server(Defect.ROUGH_DRAFT, 1), tmp_path, plan, only="top-k 4").verdict
        is AuditVerdict.DIFFERENT
    )


@pytest.mark.parametrize("defect", SAMPLED, ids=lambda defect: defect.name.lower())
def test_every_defect_is_detected_against_a_baseline_server(defect: Defect, tmp_path: Path) -> None:
    subtle = defect in (Defect.PEEKING, Defect.STALE_PENALTIES)
    plan = replace(UNBOUNDED, num_samples=6144) if subtle else UNBOUNDED
    only = "penalties" if defect is Defect.STALE_PENALTIES else "cool, top-p" if subtle else ""
    report = audit(zoo_server(defect, 1), tmp_path, plan, baseline=zoo_server(Defect.NONE, 2), only=only)
    assert report.verdict is AuditVerdict.DIFFERENT


def test_the_report_names_the_probable_defect(tmp_path: Path) -> None:
    broken = audit(zoo_server(Defect.STALE_PENALTIES, 3), tmp_path, UNBOUNDED)
    assert max(broken.rows, key=lambda row: row["e_value"])["name"] == "penalties"
    ignored = audit(zoo_server(Defect.NO_SETTINGS, 3), tmp_path, UNBOUNDED)
    assert best_alternative(ignored) == "sampling settings ignored"
    assert "sampling settings ignored" in ignored.reason
    argmax = audit(zoo_server(Defect.ARGMAX, 3), tmp_path, UNBOUNDED)
    assert best_alternative(argmax) == "most likely token sampled too often"


@pytest.mark.parametrize("two_samples", [False, True], ids=["one sample", "two samples"])
def test_a_server_without_defects_passes(two_samples: bool, tmp_path: Path) -> None:
    """100 seeded runs at an error rate of 5 %: at most 5 false alarms, below the binomial quantile."""
    plan = SamplingPlan(num_samples=112, max_samples=16, concurrency=1, num_tokens=2, choices=112)
    alarms = 0
    for run in range(100):
        baseline = zoo_server(Defect.NONE, 1000 + run) if two_samples else None
        report = audit(zoo_server(Defect.NONE, run), tmp_path, plan, baseline=baseline, epsilon=0.001)
        assert report.num_samples == 4 * 112
        alarms += report.verdict is AuditVerdict.DIFFERENT
    assert alarms <= 5 <= binom.ppf(0.999, 100, 0.05)


def test_the_distance_of_a_server_without_defects_is_bounded_as_planned(tmp_path: Path) -> None:
    plan = SamplingPlan(target_bound=0.1, max_samples=20_000, concurrency=1)
    report = audit(zoo_server(), tmp_path, plan)
    assert report.verdict is AuditVerdict.SAME
    assert report.tv_bound is not None
    assert report.tv_bound <= 0.105
    assert all(row["tv_bound"] <= 0.105 for row in report.rows)


def test_a_difference_within_epsilon_is_no_difference(tmp_path: Path) -> None:
    """A bias within the allowed rounding passes, and the same bias beyond it does not."""
    plan = SamplingPlan(num_samples=1024, max_samples=16, concurrency=1)
    assert audit(zoo_server(Defect.NO_RESIDUAL, 1), tmp_path, plan, epsilon=0.45).verdict is AuditVerdict.SAME
    assert (
        audit(zoo_server(Defect.NO_RESIDUAL, 1), tmp_path, plan, epsilon=0.01).verdict
        is AuditVerdict.DIFFERENT
    )


def best_alternative(report: AuditReport) -> str:
    """The alternative of the row with the most evidence."""
    return str(max(report.rows, key=lambda row: row["e_value"])["alternative"])


def greedy(candidate: ZooServer, referee: NearTieReferee | None, *, invariant: bool = False) -> AuditVerdict:
    prompts = [Prompt(ids=(*PROMPT, token)) for token in range(VOCAB)]
    with run_server(ZooServer(candidate.target, candidate.draft)) as baseline, run_server(candidate) as url:
        requests = [(prompt, SamplingParams(temperature=0.0)) for prompt in prompts]
        with closing(Endpoint(baseline)) as one, closing(Endpoint(url)) as other:
            pairs = request_pairs(requests, server_source(one), server_source(other), 12, 1)
            if invariant:
                return compare_identical("greedy", pairs, lambda _: None).verdict
            return compare_greedy(pairs, referee, lambda _: None).verdict


def test_rejection_sampling_at_temperature_0_is_detected_and_exact_matching_passes() -> None:
    referee = NearTieReferee(TableModel(), ["float32"], bound=0.01)  # type: ignore[arg-type]
    assert greedy(zoo_server(), referee) is AuditVerdict.SAME
    assert greedy(zoo_server(Defect.GREEDY_RATIO), referee) is AuditVerdict.DIFFERENT


def test_near_ties_are_not_reported_as_identical() -> None:
    wide = NearTieReferee(TableModel(), ["float32"], bound=100.0)  # type: ignore[arg-type]
    found = greedy(zoo_server(Defect.GREEDY_RATIO), wide)
    assert found is AuditVerdict.ROUNDING
    assert found.exit_code == 0


def test_servers_in_invariant_mode_get_no_tolerance_for_near_ties() -> None:
    assert greedy(zoo_server(), None, invariant=True) is AuditVerdict.SAME
    assert greedy(zoo_server(Defect.GREEDY_RATIO), None, invariant=True) is AuditVerdict.DIFFERENT


def test_greedy_differences_without_a_reference_are_no_verdict() -> None:
    assert greedy(zoo_server(), None) is AuditVerdict.SAME
    assert greedy(zoo_server(Defect.GREEDY_RATIO), None) is AuditVerdict.NO_VERDICT


def seeded(candidate: ZooServer) -> AuditVerdict:
    requests = [(Prompt(ids=PROMPT), SamplingParams(seed=seed)) for seed in range(8)]
    with (
        run_server(ZooServer(candidate.target, candidate.draft)) as baseline,
        run_server(candidate) as url,
        closing(Endpoint(baseline)) as one,
        closing(Endpoint(url)) as other,
    ):
        pairs = request_pairs(requests, server_source(one), server_source(other), 24, 1)
        return compare_seeded(pairs, lambda _: (0.0, 0.001), None, 0.05, lambda _: None).verdict


def test_seeded_noise_that_drifts_is_detected_and_correct_noise_passes() -> None:
    assert seeded(zoo_server()) is AuditVerdict.SAME
    assert seeded(zoo_server(Defect.SEED_DRIFT)) is AuditVerdict.DIFFERENT


@pytest.mark.parametrize("fault", ["hang", "close", "500", "malformed", "odd"])
def test_network_faults_are_retried_and_counted(fault: str, tmp_path: Path) -> None:
    candidate = zoo_server()
    candidate.faults = ["", "", fault, fault]
    plan = SamplingPlan(num_samples=64, max_samples=16, concurrency=1)
    report = audit(candidate, tmp_path, plan, epsilon=0.01, timeout=1.0 if fault == "hang" else 30.0)
    assert report.verdict is AuditVerdict.SAME
    assert report.num_samples == 4 * 64
    assert any("faults" in note and "2 x" in note for note in report.notes)


def test_a_server_that_fails_gives_no_verdict_and_its_samples_are_saved(tmp_path: Path) -> None:
    candidate = zoo_server()
    candidate.always, candidate.after = "500", 9
    plan = SamplingPlan(num_samples=256, max_samples=16, concurrency=1)
    report = audit(candidate, tmp_path, plan, epsilon=0.01)
    assert report.verdict is AuditVerdict.NO_VERDICT
    assert report.verdict.exit_code == 2
    saved = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()[1:]]
    assert sum(len(row["candidate"]) for row in saved) == report.num_samples > 0

    whole = audit(zoo_server(seed=4), tmp_path, plan, epsilon=0.01, resume=True)
    assert whole.verdict is AuditVerdict.SAME
    assert whole.num_samples == 4 * 256
    again = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()[1:]]
    assert again[: len(saved)] == saved


def test_evidence_gathered_before_a_server_fails_counts(tmp_path: Path) -> None:
    candidate = zoo_server(Defect.GARBAGE)
    candidate.always, candidate.after = "500", 4
    plan = SamplingPlan(num_samples=256, max_samples=16, concurrency=1, stop_at_e_value=1e200)
    assert audit(candidate, tmp_path, plan, epsilon=0.01).verdict is AuditVerdict.DIFFERENT


def test_a_connection_established_while_the_endpoint_closes_is_shut_down() -> None:
    """Otherwise a request to a server that hangs would delay an interrupt until its timeout."""
    with run_server(zoo_server()) as url:
        endpoint = Endpoint(url)
        endpoint.close()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = SimpleNamespace(get_extra_info=lambda _: ours)
        endpoint._remember_socket("connection.connect_tcp.complete", {"return_value": stream})
        theirs.settimeout(10)
        assert theirs.recv(1) == b""
