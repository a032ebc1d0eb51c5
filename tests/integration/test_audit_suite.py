"""`forerun audit suite`: every defect fails its check, and servers without a defect pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from e2e.questions import FULL
from forerun.audit.report import AuditReport, AuditVerdict
from forerun.audit.suite.catalogue import CHECKS, SuiteCheck
from forerun.audit.suite.finding import Finding
from forerun.audit.suite.run import choose_checks, run_suite
from forerun.audit.suite.session import Session
from forerun.cli.main import app
from forerun.errors import ServerFailed
from forerun.servers.completions import Prompt
from forerun.servers.endpoint import Endpoint
from zoo.auditing import zoo_server
from zoo.features import FeatureDefect, FeatureServer, run_feature_server
from zoo.models import PROMPT
from zoo.server import ZooServer, run_server
from zoo.speculation import Defect

PROMPTS = [Prompt("abcdabcdabc"), Prompt("hello world hello"), Prompt("one two one")]

FOUND_BY = {
    FeatureDefect.GREEDY: "greedy",
    FeatureDefect.LONG_RUN: "long-drafts",
    FeatureDefect.CACHE_REPLAY: "cache-replay",
    FeatureDefect.PREFIX_HIT: "prefix-cache",
    FeatureDefect.SHARED_PREFIX: "shared-prefix",
    FeatureDefect.CROSS_TALK: "concurrency",
    FeatureDefect.ABORT_DAMAGE: "aborts",
    FeatureDefect.OVERSHOOT: "max-tokens",
    FeatureDefect.CONTEXT_END: "context-limit",
    FeatureDefect.STOP_OVERRUN: "stop-strings",
    FeatureDefect.STOP_TOKENS: "stop-strings",
    FeatureDefect.GRAMMAR_IGNORED: "json-schema",
    FeatureDefect.TOOL_STREAM: "tool-calls",
    FeatureDefect.TOP_K_IGNORED: "truncation",
    FeatureDefect.MIN_P_IGNORED: "min-p",
    FeatureDefect.BIAS_IGNORED: "logit-bias",
    FeatureDefect.STALE_PENALTIES: "penalties",
    FeatureDefect.SHIFTED_LOGPROBS: "logprobs",
    FeatureDefect.SEED_IGNORED: "seeds",
    FeatureDefect.OTHER_SEEDS: "seeds-as-without",
    FeatureDefect.GARBAGE: "distribution",
}
"""The check that must fail for each defect; others may fail too."""

SEEN_WITH_BASELINE = {FeatureDefect.STOP_TOKENS, FeatureDefect.STALE_PENALTIES}
"""Defects that their checks only see, or only decide, with a baseline."""

NEED_BASELINE = {"seeds-as-without", "distribution"}


def audit(
    candidate: FeatureServer,
    *,
    baseline: FeatureServer | None = None,
    names: Sequence[str] = (),
    thorough: bool = False,
) -> AuditReport:
    with ExitStack() as stack:
        servers = [each for each in (candidate, baseline) if each is not None]
        urls = [stack.enter_context(run_feature_server(each)) for each in servers]
        ends = [stack.enter_context(closing(Endpoint(url, pause=0.01))) for url in urls]
        session = Session(
            ends[0], ends[1] if baseline else None, prompts=PROMPTS, concurrency=8, thorough=thorough
        )
        return run_suite(session, choose_checks(names), {})


def findings(report: AuditReport) -> dict[str, str]:
    return {row["name"]: row["finding"] for row in report.rows}


def test_every_check_has_a_defect_that_it_finds() -> None:
    assert set(FOUND_BY.values()) == {check.name for check in CHECKS}
    assert set(FOUND_BY) == set(FeatureDefect) - {FeatureDefect.NONE}


@pytest.mark.parametrize("defect", FOUND_BY, ids=lambda defect: defect.name.lower())
def test_a_defect_fails_its_check(defect: FeatureDefect) -> None:
    name = FOUND_BY[defect]
    report = audit(FeatureServer(defect), baseline=FeatureServer(speculates=False), names=[name])
    assert findings(report) == {name: "fail"}
    assert report.verdict is AuditVerdict.DIFFERENT
    assert report.rows[0]["evidence"] or defect is FeatureDefect.GARBAGE


@pytest.mark.parametrize(
    "defect",
    [each for each, name in FOUND_BY.items() if name not in NEED_BASELINE and each not in SEEN_WITH_BASELINE],
    ids=lambda defect: defect.name.lower(),
)
def test_a_defect_fails_its_check_without_a_baseline(defect: FeatureDefect) -> None:
    name = FOUND_BY[defect]
    assert findings(audit(FeatureServer(defect), names=[name])) == {name: "fail"}


@pytest.mark.parametrize("seed", range(20 if FULL else 3))
def test_a_server_without_a_defect_passes_every_check(seed: int) -> None:
    report = audit(FeatureServer(seed=seed), baseline=FeatureServer(seed=seed, speculates=False))
    assert set(findings(report).values()) == {"pass"}, report.reason
    assert report.verdict is AuditVerdict.SAME
    assert any("draft tokens were accepted" in note for note in report.notes)


def test_a_server_without_a_defect_passes_without_a_baseline() -> None:
    found = findings(audit(FeatureServer()))
    assert {name for name, finding in found.items() if finding != "pass"} == NEED_BASELINE
    assert {found[name] for name in NEED_BASELINE} == {"not applicable"}


def test_what_a_server_refuses_is_not_applicable() -> None:
    server = FeatureServer(refuses=frozenset({"logit_bias", "min_p", "tools", "response_format"}))
    names = ["logit-bias", "min-p", "tool-calls", "json-schema", "max-tokens"]
    report = audit(server, names=names)
    assert findings(report) == dict.fromkeys(names[:-1], "not applicable") | {"max-tokens": "pass"}
    reasons = {row["name"]: row["reason"] for row in report.rows}
    assert all("is not supported" in reasons[name] for name in names[:-1])


IN_SCOPE = {
    Defect.GREEDY_RATIO: "greedy",
    Defect.STALE_PENALTIES: "penalties",
    Defect.NO_SETTINGS: "truncation",
    Defect.GARBAGE: "truncation",
    Defect.ARGMAX: "distribution",
    Defect.SHARED_NOISE: "distribution",
    Defect.OTHER_Q: "distribution",
    Defect.RAW_Q: "distribution",
    Defect.NO_RESIDUAL: "distribution",
    Defect.SEED_DRIFT: "seeds-as-without",
}
"""Defects of rejection sampling; two subtle ones (a draft in bfloat16, a length that depends on values) are
left to `forerun audit sampled`, which takes more samples.
"""


@pytest.mark.parametrize("defect", IN_SCOPE, ids=lambda defect: defect.name.lower())
def test_defects_of_rejection_sampling_are_found(defect: Defect) -> None:
    name, honest = IN_SCOPE[defect], zoo_server(seed=2)
    with (
        run_server(zoo_server(defect, 1)) as url,
        run_server(ZooServer(honest.target, honest.target)) as other,
        closing(Endpoint(url, pause=0.01)) as candidate,
        closing(Endpoint(other, pause=0.01)) as baseline,
    ):
        prompts = [Prompt(ids=(*PROMPT, token)) for token in range(6)]
        session = Session(candidate, baseline, prompts=prompts, concurrency=4, thorough=True)
        assert findings(run_suite(session, choose_checks([name]), {})) == {name: "fail"}


def test_the_command_writes_its_report_in_every_format(tmp_path: Path) -> None:
    page, junit, record = (tmp_path / f"suite.{ending}" for ending in ("html", "xml", "json"))
    server = FeatureServer(FeatureDefect.BIAS_IGNORED, refuses=frozenset({"min_p"}))
    with run_feature_server(server) as url:
        arguments = ["--check", "logit-bias", "--check", "min-p", "--check", "max-tokens"]
        files = ["--output", str(page), "--junit", str(junit), "--json-file", str(record)]
        result = CliRunner().invoke(app, ["audit", "suite", "--candidate", url, *arguments, *files])
    assert result.exit_code == 1
    assert "failed: logit-bias" in result.stdout
    assert "https://github.com/vllm-project/vllm/issues/38202" in page.read_text()
    suite = ET.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert "position" in (suite.find("testcase/failure").text or "")  # type: ignore[union-attr]
    rows = json.loads(record.read_text())["rows"]
    assert [row["finding"] for row in rows] == ["pass", "not applicable", "fail"]


@pytest.mark.parametrize("responds", [False, True])
def test_a_server_that_stops_fails_the_check_in_which_it_stopped(
    monkeypatch: pytest.MonkeyPatch, responds: bool
) -> None:
    def stop(session: Session) -> Finding:
        raise ServerFailed("no answer")

    checks = [*choose_checks(["max-tokens"]), SuiteCheck("stops", "", (), stop), *choose_checks(["seeds"])]
    with run_feature_server(FeatureServer()) as url, closing(Endpoint(url, pause=0.01)) as candidate:
        monkeypatch.setattr(candidate, "responds", lambda: responds)
        report = run_suite(Session(candidate, prompts=PROMPTS), checks, {})
    stopped = {"max-tokens": "pass", "stops": "fail", "seeds": "undecided"}
    assert findings(report) == ({**stopped, "stops": "undecided", "seeds": "pass"} if responds else stopped)
    assert report.verdict is (AuditVerdict.NO_VERDICT if responds else AuditVerdict.DIFFERENT)


def test_an_endpoint_says_whether_its_server_responds() -> None:
    with run_feature_server(FeatureServer()) as url, closing(Endpoint(url, pause=0.01)) as end:
        assert end.responds()
        end.url = "http://127.0.0.1:9/v1"
        end._client.base_url = end.url
        assert not end.responds()


def test_an_unknown_check_is_named() -> None:
    with run_feature_server(FeatureServer()) as url:
        result = CliRunner().invoke(app, ["audit", "suite", "--candidate", url, "--check", "greedi"])
    assert result.exit_code == 2
    assert "did you mean 'greedy'?" in result.output
