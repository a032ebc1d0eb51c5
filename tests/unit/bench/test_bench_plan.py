"""Groups of requests and their concurrency."""

from __future__ import annotations

from threading import Event, Lock
from typing import Any, cast

import pytest

from forerun.bench.run import BenchPlan, run_group
from forerun.bench.suites import Question
from forerun.servers.endpoint import Endpoint
from forerun.servers.streaming import StreamedAnswer

QUESTIONS = [Question(str(number), "chat", f"question {number}") for number in range(11)]


class CountingEndpoint:
    """Answers the first question after all others, and counts the requests in flight."""

    def __init__(self, num_others: int) -> None:
        self.num_others, self.in_flight, self.max_in_flight = num_others, 0, 0
        self.lock, self.others_are_answered = Lock(), Event()

    def chat(self, text: str, *_: Any) -> StreamedAnswer:
        with self.lock:
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
        if text == QUESTIONS[0].text:
            assert self.others_are_answered.wait(10), "the other requests wait for the slowest"
        with self.lock:
            self.in_flight -= 1
            self.num_others -= text != QUESTIONS[0].text
            if not self.num_others:
                self.others_are_answered.set()
        return StreamedAnswer(0.0, (1.0,), (1,), "", (7,), num_tokens=1)


@pytest.mark.parametrize(("concurrency", "sizes"), [(1, [1] * 11), (2, [8, 4]), (4, [12]), (16, [16])])
def test_groups_are_padded_to_the_concurrency_and_cover_every_question(
    concurrency: int, sizes: list[int]
) -> None:
    plan = BenchPlan(QUESTIONS, (0.0,), (concurrency,), 8)
    groups = list(plan.groups(0))
    assert [len(group) for group in groups] == sizes
    assert len(plan) == len(sizes)
    assert [case.number for group in groups for case, _ in group] == list(range(sum(sizes)))
    assert {each.id for group in groups for _, each in group} == {each.id for each in QUESTIONS}


def test_a_completed_request_is_replaced_by_the_next() -> None:
    plan = BenchPlan(QUESTIONS, (0.0,), (2,), 8)
    group = next(plan.groups(0))
    endpoint = CountingEndpoint(len(group) - 1)
    answers = run_group(plan, group, "a system", cast("Endpoint", endpoint))
    assert endpoint.max_in_flight == 2
    assert [answer.case for answer in answers] == [case for case, _ in group]
