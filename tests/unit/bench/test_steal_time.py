"""What others take of a machine is seen, and answers that were disturbed by it are asked for again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from forerun.bench import steal_time
from forerun.bench.record import TAKEN, CaseKey, RecordedAnswer
from forerun.bench.run import TRIES, undisturbed
from forerun.bench.steal_time import CpuTicks

ANSWER = RecordedAnswer(CaseKey(0, 0.0, 1, 0, 0, "81", "qa"), "vllm", num_tokens=8)


def test_the_share_of_others_is_what_the_kernel_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steal_time, "STAT", stat := tmp_path / "stat")
    assert CpuTicks.now() == CpuTicks(0, 0), "no kernel that tells"
    stat.write_text("cpu  100 5 20 300 2 1 2 70 9 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    before = CpuTicks.now()
    assert before == CpuTicks(70, 500)
    stat.write_text("cpu  150 5 20 310 2 1 2 110 9 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert CpuTicks.now().share_since(before) == pytest.approx(40 / 100)
    assert before.share_since(before) == 0.0


@pytest.mark.parametrize(
    ("shares", "kept"),
    [
        ([0.0], 0.0),
        ([0.4, 0.3, TAKEN, 0.0], TAKEN),
        ([0.4, 0.3, 0.2, 0.3, 0.0], 0.2),
    ],
)
def test_disturbed_answers_are_asked_for_again(shares: list[float], kept: float) -> None:
    tries = iter(shares)
    found = undisturbed(lambda: [replace(ANSWER, stolen=next(tries))] * 2, rest=0.0)
    assert [each.stolen for each in found] == [kept] * 2
    assert len(list(tries)) == (1 if len(shares) >= TRIES else 0), "not more often than it takes"


def test_errors_are_not_asked_away() -> None:
    tries = iter([replace(ANSWER, stolen=0.4), replace(ANSWER, stolen=0.5, error="broke off")])
    (found,) = undisturbed(lambda: [next(tries)], rest=0.0)
    assert found.error == "broke off"
