"""Statistics of speculative decoding, and their export by another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from forerun.control.step_cost import StepCost
from forerun.engines.vllm import shared_counters
from forerun.engines.vllm.metric_names import (
    ACCEPTED_TOKENS,
    DRAFT_SECONDS,
    DRAFT_TOKENS,
    DRAFTER_ERRORS,
    REQUEST_STEPS,
    STEP_SECONDS,
    TOKENS,
    UNDRAFTED_STEPS,
)
from forerun.engines.vllm.stats import PeriodicStatsLogger, SpecDecodeStats, summarize


def by_depth(stats: SpecDecodeStats, name: str, drafter: str) -> list[float]:
    return [
        value
        for (each, labels), value in zip(stats.series, stats.values.tolist(), strict=True)
        if each == name and ("drafter", drafter) in labels
    ]


def test_draft_tokens_are_counted_by_drafter_and_depth() -> None:
    stats = SpecDecodeStats(("suffix", "grammar"), 4)
    stats.record_request_step(["suffix", "suffix", "grammar"], num_tokens=3)  # two accepted
    stats.record_request_step(["suffix", "grammar", "grammar", "grammar"], num_tokens=5)  # all four
    stats.record_request_step(["suffix"], num_tokens=1)  # rejected
    stats.record_request_step([], num_tokens=1)
    assert (stats.total(REQUEST_STEPS), stats.total(UNDRAFTED_STEPS), stats.total(TOKENS)) == (4, 1, 10)
    assert by_depth(stats, DRAFT_TOKENS, "suffix") == [3, 1, 0, 0]
    assert by_depth(stats, ACCEPTED_TOKENS, "suffix") == [2, 1, 0, 0]
    assert by_depth(stats, DRAFT_TOKENS, "grammar") == [0, 1, 2, 1]
    assert by_depth(stats, ACCEPTED_TOKENS, "grammar") == [0, 1, 1, 1]
    assert stats.total(TOKENS) == stats.total(REQUEST_STEPS) + stats.total(ACCEPTED_TOKENS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of this user's counters, without an instance in the environment."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv(shared_counters.INSTANCE_VARIABLE, raising=False)
    return tmp_path / f"forerun-{os.getuid()}"


def test_another_process_reads_the_counters_while_they_grow(folder: Path) -> None:
    stats = SpecDecodeStats(("suffix",), 2)
    stats.record_request_step(["suffix"], num_tokens=2)
    stats.publish("some", 3)
    stats.add_error("suffix")
    stats.add_seconds("suffix", 0.25)
    program = (
        "import json; from forerun.engines.vllm.shared_counters import read_counters;"
        "print(json.dumps([[name, value] for engine, (name, _), value in read_counters('some') if value]))"
    )
    seen = json.loads(subprocess.check_output([sys.executable, "-c", program]))
    assert dict(seen) == {
        REQUEST_STEPS: 1,
        TOKENS: 2,
        DRAFT_TOKENS: 1,
        ACCEPTED_TOKENS: 1,
        DRAFTER_ERRORS: 1,
        DRAFT_SECONDS: 0.25,
    }
    assert {engine for engine, _, _ in shared_counters.read_counters("some")} == {"3"}
    assert folder.stat().st_mode & 0o077 == 0, "other users have no access"


def test_instances_are_separate_and_files_of_ended_processes_are_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def engines(instance: str) -> set[str]:
        return {engine for engine, _, _ in shared_counters.read_counters(instance)}

    for instance, engine in (("ab", 0), ("ab", 1), ("abc", 0)):
        SpecDecodeStats(("suffix",), 1).publish(instance, engine)
    found = shared_counters.read_counters("ab")
    assert [engine for engine, (name, _), _ in found if name == REQUEST_STEPS] == ["0", "1"]
    assert not engines("unknown")
    (folder / "ab-7-999999999.counts").write_bytes(b"")
    (folder / f"ab-8-{os.getpid()}.counts").write_bytes(b"rubbish")
    assert engines("ab") == {"0", "1"}, "unreadable files are skipped"
    monkeypatch.setenv(shared_counters.INSTANCE_VARIABLE, "instance of the server")
    SpecDecodeStats(("suffix",), 1).publish("ab", 5)
    assert not list(folder.glob("*999999999*"))
    assert engines("id from vLLM") == {"5"}


def test_a_directory_that_others_can_access_is_not_used(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    stats = SpecDecodeStats(("suffix",), 1)
    stats.publish("some", 0)
    assert str(folder) in caplog.text
    stats.record_request_step([], num_tokens=1)
    assert stats.total(REQUEST_STEPS) == 1, "counting continues"


DEPTH = {"drafter": "suffix", "depth": "1"}
RENAMED = [
    ("counter", "forerun:undrafted_request_steps_total", "forerun:plain_request_steps_total", {}),
    ("gauge", "forerun:tracked_requests", "forerun:known_requests", {}),
    ("counter", "forerun:draft_tokens_total", "forerun:proposed_tokens_total", DEPTH),
    ("gauge", "forerun:draft_length", "forerun:chosen_tokens", {"drafter": "suffix"}),
    ("gauge", "forerun:baseline_goodput", "forerun:plain_goodput", {"drafter": "suffix"}),
    ("gauge", "forerun:step_seconds", "forerun:pass_seconds", {"rows": "8", "sampled": "no"}),
]


@pytest.mark.usefixtures("folder")
def test_renamed_metrics_are_exported_under_both_names() -> None:
    pytest.importorskip("prometheus_client", reason="comes with vLLM")
    from forerun.engines.vllm.metrics import SpecDecodeCollector

    stats = SpecDecodeStats(("suffix",), 2)
    stats.publish("some", 3)
    stats.values += range(1, len(stats.values) + 1)
    families = {each.name: each for each in SpecDecodeCollector({"some"}).collect()}
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for each in families.values()
        for sample in each.samples
    }
    for kind, new, old, labels in RENAMED:
        old_labels = {{"sampled": "drawn"}.get(key, key): value for key, value in labels.items()}
        value = samples[(new, *sorted({**labels, "engine": "3"}.items()))]
        assert value > 0
        assert samples[(old, *sorted({**old_labels, "engine": "3"}.items()))] == value
        family = families[old.removesuffix("_total")]
        assert (family.type, family.documentation) == (kind, f"Deprecated: use {new}.")
        assert families[new.removesuffix("_total")].type == kind
    num_deprecated = sum("Deprecated" in each.documentation for each in families.values())
    assert num_deprecated == len(RENAMED)


def test_a_line_is_logged_per_interval_with_steps() -> None:
    stats = SpecDecodeStats(("suffix", "ngram"), 4)
    periodic = PeriodicStatsLogger(stats, now=0.0)
    stats.record_request_step(["suffix"] * 4, num_tokens=4)
    stats.record_request_step([], num_tokens=1)
    assert periodic.next_line(59.0) is None
    line = periodic.next_line(61.0)
    assert line is not None
    for fact in ("2.50 tokens per step", "50%", "suffix: 3 of 4", "75%"):
        assert fact in line
    assert "ngram" not in line
    assert periodic.next_line(200.0) is None, "no steps since the last line"
    stats.record_request_step(["ngram"], num_tokens=1)
    stats.add_error("ngram")
    line = periodic.next_line(300.0)
    assert line is not None
    assert "1.00 tokens per step" in line
    assert "ngram: 1 errors" in line
    assert "suffix" not in line


def test_the_summary_covers_all_steps() -> None:
    stats = SpecDecodeStats(("suffix",), 4)
    stats.record_request_step(["suffix"], num_tokens=2)
    assert "2.00 tokens per step" in summarize(stats)


def test_exporting_step_costs_leaves_the_curve_unchanged() -> None:
    stats, cost = SpecDecodeStats(("suffix",), 1), StepCost((1, 8), (0.05, 0.06))
    before = cost.to_dict()
    stats.set_step_costs(cost)
    assert cost.to_dict() == before
    greedy, sampled = (
        stats.series.index((STEP_SECONDS, (("rows", "1"), ("sampled", each)))) for each in ("no", "yes")
    )
    assert stats.values[greedy] == pytest.approx(0.05)
    assert stats.values[sampled] == 0.0
    cost.update(1, 0.07, sampled=True)
    stats.set_step_costs(cost)
    assert stats.values[sampled] > 0.05
