"""Who is asked what, and when: in groups, so many at a time, with nobody waiting while there is room."""

from __future__ import annotations

import time
from threading import Event, Lock
from typing import Any, cast

import pytest

from forerun.bench.run import BenchPlan, run_group
from forerun.bench.suites import Question
from forerun.servers.endpoint import Endpoint
from forerun.servers.streaming import StreamedAnswer

QUESTIONS = [Question(str(number), "chat", f"question {number}") for number in range(11)]


class Counting:
    """Answers the first question when the last of so many others is answered, and counts those under way."""

    def __init__(self, num_others: int) -> None:
        self.num_others, self.now, self.most = num_others, 0, 0
        self.lock, self.rest_is_answered = Lock(), Event()

    def chat(self, text: str, *_: Any) -> StreamedAnswer:
        sent = time.perf_counter()
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        if text == QUESTIONS[0].text:
            assert self.rest_is_answered.wait(10), "others wait for the slowest"
        with self.lock:
            self.now -= 1
            self.num_others -= text != QUESTIONS[0].text
            if not self.num_others:
                self.rest_is_answered.set()
        return StreamedAnswer(sent, (time.perf_counter() - sent,), (1,), "", (7,), num_tokens=1)


@pytest.mark.parametrize(("width", "sizes"), [(1, [1] * 11), (2, [8, 4]), (4, [12]), (16, [16])])
def test_groups_are_filled_up_and_ask_everything(width: int, sizes: list[int]) -> None:
    race = BenchPlan(QUESTIONS, (0.0,), (width,), 8)
    groups = list(race.groups(0))
    assert [len(group) for group in groups] == sizes
    assert len(race) == len(sizes)
    assert [place.number for group in groups for place, _ in group] == list(range(sum(sizes)))
    assert {each.id for group in groups for _, each in group} == {each.id for each in QUESTIONS}


def test_whoever_is_answered_makes_room_for_the_next() -> None:
    race = BenchPlan(QUESTIONS, (0.0,), (2,), 8)
    group = next(race.groups(0))
    lane = Counting(len(group) - 1)
    answers = run_group(race, group, "somebody", cast("Endpoint", lane))
    assert lane.most == 2
    assert [answer.place for answer in answers] == [place for place, _ in group]
