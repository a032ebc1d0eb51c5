"""Groups of requests that steal time disturbs are repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.bench.recorded_answer import MAX_STEAL_SHARE, CaseKey, RecordedAnswer
from forerun.bench.run import MAX_ATTEMPTS, run_undisturbed

ANSWER = RecordedAnswer(CaseKey(0, 0.0, 1, 0, 0, "81", "qa"), "vllm", num_tokens=8)


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
