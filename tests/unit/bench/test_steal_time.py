"""Steal time is measured, and groups that it disturbs are repeated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from forerun.bench import steal_time
from forerun.bench.recorded_answer import MAX_STEAL_SHARE, CaseKey, RecordedAnswer
from forerun.bench.run import MAX_ATTEMPTS, run_undisturbed
from forerun.bench.steal_time import CpuTicks

ANSWER = RecordedAnswer(CaseKey(0, 0.0, 1, 0, 0, "81", "qa"), "vllm", num_tokens=8)


def test_the_steal_share_comes_from_the_kernel_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steal_time, "STAT", stat := tmp_path / "stat")
    assert CpuTicks.now() == CpuTicks(0, 0), "no /proc/stat"
    stat.write_text("cpu  100 5 20 300 2 1 2 70 9 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    before = CpuTicks.now()
    assert before == CpuTicks(70, 500)
    stat.write_text("cpu  150 5 20 310 2 1 2 110 9 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert CpuTicks.now().steal_share_since(before) == pytest.approx(40 / 100)
    assert before.steal_share_since(before) == 0.0


@pytest.mark.parametrize(
    ("shares", "returned"),
    [
        ([0.0], 0.0),
        ([0.4, 0.3, MAX_STEAL_SHARE, 0.0], MAX_STEAL_SHARE),
        ([0.4, 0.3, 0.2, 0.3, 0.0], 0.2),
    ],
)
def test_disturbed_groups_are_repeated(shares: list[float], returned: float) -> None:
    attempts = iter(shares)
    found = run_undisturbed(lambda: [replace(ANSWER, steal_share=next(attempts))] * 2, idle_seconds=0.0)
    assert [each.steal_share for each in found] == [returned] * 2
    assert len(list(attempts)) == (1 if len(shares) >= MAX_ATTEMPTS else 0), "no more attempts than necessary"


def test_errors_are_not_retried_away() -> None:
    attempts = iter([replace(ANSWER, steal_share=0.4), replace(ANSWER, steal_share=0.5, error="broke off")])
    (found,) = run_undisturbed(lambda: [next(attempts)], idle_seconds=0.0)
    assert found.error == "broke off"
