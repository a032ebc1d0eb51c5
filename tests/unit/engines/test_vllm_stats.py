"""What speculation did, counted, and read by another process."""

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
from forerun.engines.vllm.stats import (
    ACCEPTED,
    COSTS,
    ERRORS,
    PLAIN,
    PROPOSED,
    SECONDS,
    STEPS,
    TOKENS,
    PeriodicStatsLogger,
    SpecDecodeStats,
    summary,
)


def by_depth(tally: SpecDecodeStats, name: str, drafter: str) -> list[float]:
    return [
        value
        for (each, labels), value in zip(tally.series, tally.values.tolist(), strict=True)
        if each == name and ("drafter", drafter) in labels
    ]


def test_guesses_count_for_who_made_them_at_their_depth() -> None:
    tally = SpecDecodeStats(("suffix", "grammar"), 4)
    tally.step(["suffix", "suffix", "grammar"], num_said=3)  # two stood
    tally.step(["suffix", "grammar", "grammar", "grammar"], num_said=5)  # all four
    tally.step(["suffix"], num_said=1)  # it fell
    tally.step([], num_said=1)
    assert (tally.total(STEPS), tally.total(PLAIN), tally.total(TOKENS)) == (4, 1, 10)
    assert by_depth(tally, PROPOSED, "suffix") == [3, 1, 0, 0]
    assert by_depth(tally, ACCEPTED, "suffix") == [2, 1, 0, 0]
    assert by_depth(tally, PROPOSED, "grammar") == [0, 1, 2, 1]
    assert by_depth(tally, ACCEPTED, "grammar") == [0, 1, 1, 1]
    assert tally.total(TOKENS) == tally.total(STEPS) + tally.total(ACCEPTED)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's counts are kept; no server's name is in the environment."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv(shared_counters.INSTANCE, raising=False)
    return tmp_path / f"forerun-{os.getuid()}"


def test_counts_are_read_by_another_process_while_they_grow(folder: Path) -> None:
    tally = SpecDecodeStats(("suffix",), 2)
    tally.step(["suffix"], num_said=2)
    tally.publish("some", 3)
    tally.add_error("suffix")
    tally.add_seconds("suffix", 0.25)
    program = (
        "import json; from forerun.engines.vllm.shared_counters import read;"
        "print(json.dumps([[name, value] for engine, (name, _), value in read('some') if value]))"
    )
    seen = json.loads(subprocess.check_output([sys.executable, "-c", program]))
    assert dict(seen) == {STEPS: 1, TOKENS: 2, PROPOSED: 1, ACCEPTED: 1, ERRORS: 1, SECONDS: 0.25}
    assert {engine for engine, _, _ in shared_counters.read("some")} == {"3"}
    assert folder.stat().st_mode & 0o077 == 0, "nobody else's business"


def test_servers_are_told_apart_and_the_dead_are_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for instance, engine in (("ab", 0), ("ab", 1), ("abc", 0)):
        SpecDecodeStats(("suffix",), 1).publish(instance, engine)
    assert [engine for engine, (name, _), _ in shared_counters.read("ab") if name == STEPS] == ["0", "1"]
    assert not list(shared_counters.read("nobody"))
    (folder / "ab-7-999999999.counts").write_bytes(b"")
    (folder / f"ab-8-{os.getpid()}.counts").write_bytes(b"rubbish")
    assert {engine for engine, _, _ in shared_counters.read("ab")} == {"0", "1"}, (
        "what cannot be read is left out"
    )
    monkeypatch.setenv(shared_counters.INSTANCE, "a name of its own")
    SpecDecodeStats(("suffix",), 1).publish("ab", 5)
    assert not list(folder.glob("*999999999*"))
    assert {engine for engine, _, _ in shared_counters.read("whatever vLLM says")} == {"5"}


def test_a_directory_of_somebody_elses_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    tally = SpecDecodeStats(("suffix",), 1)
    tally.publish("some", 0)
    assert "not published" in caplog.text
    tally.step([], num_said=1)
    assert tally.total(STEPS) == 1, "counting goes on"


def test_a_line_a_minute_if_anything_happened() -> None:
    tally = SpecDecodeStats(("suffix", "ngram"), 4)
    minutes = PeriodicStatsLogger(tally, now=0.0)
    tally.step(["suffix"] * 4, num_said=4)
    tally.step([], num_said=1)
    assert minutes.line(59.0) is None
    line = minutes.line(61.0)
    assert line == "2.50 tokens per step; 50% of steps plain; suffix: 3 of 4 guesses stood (75%)"
    assert minutes.line(200.0) is None, "nothing happened since"
    tally.step(["ngram"], num_said=1)
    tally.add_error("ngram")
    line = minutes.line(300.0)
    assert line is not None
    assert "1.00 tokens per step" in line
    assert "ngram: 1 errors" in line
    assert "suffix" not in line


def test_the_summary_of_everything() -> None:
    tally = SpecDecodeStats(("suffix",), 4)
    tally.step(["suffix"], num_said=2)
    assert summary(tally).startswith("2.00 tokens per step")


def test_telling_what_passes_cost_changes_nothing() -> None:
    tally, cost = SpecDecodeStats(("suffix",), 1), StepCost((1, 8), (0.05, 0.06))
    before = cost.to_dict()
    tally.costs(cost)
    assert cost.to_dict() == before
    assert tally.values[tally.series.index((COSTS, (("rows", "1"), ("drawn", "no"))))] == pytest.approx(0.05)
    drawn = tally.series.index((COSTS, (("rows", "1"), ("drawn", "yes"))))
    assert tally.values[drawn] == 0.0
    cost.update(1, 0.07, sampled=True)
    tally.costs(cost)
    assert tally.values[drawn] > 0.05
