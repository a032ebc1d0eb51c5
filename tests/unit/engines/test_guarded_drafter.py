"""Drafters at fault: whatever they do, the worst is that nobody guesses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from forerun.engines.guarded_drafter import GuardedDrafter
from forerun.engines.vllm.stats import ERRORS, SECONDS, SpecDecodeStats
from forerun.types import Draft, Proposal, RequestView, Verdict

VOCAB = 10
VIEWS = [RequestView("a", [1, 2]), RequestView("b", [3, 4])]


class Scripted:
    """Does what it is told when it is asked."""

    def __init__(self, act: Callable[[Sequence[RequestView]], Any]) -> None:
        self.act = act
        self.num_asked = 0

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        self.num_asked += 1
        drafts: list[Draft] = self.act(views)
        return drafts

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        raise RuntimeError("cannot learn")

    def forget(self, id: str) -> None:
        raise RuntimeError("cannot forget")


def fail(_: object) -> list[Draft]:
    raise RuntimeError("no idea")


def always(draft: Any) -> Callable[[Sequence[RequestView]], Any]:
    return lambda views: [draft for _ in views]


TREE = Draft(np.array([1, 2]), np.array([-1, -1]), np.array([False, False]))
NAN = Draft.chain([1], q=[Proposal(np.full(VOCAB, np.nan))])


@pytest.mark.parametrize(
    "act",
    [
        fail,
        always(Draft.chain([1, VOCAB])),
        always(Draft.chain([-1])),
        always(Draft.chain([1, 2, 3, 4])),
        always(TREE),
        always(Draft(np.array([1, 2]), np.array([-1]), np.array([False, False]))),
        always(None),
        always([1, 2]),
        lambda views: [Draft.chain([1])],
        lambda views: [Draft.chain([1])] * 3,
        lambda views: None,
        lambda views: 7,
    ],
)
def test_rubbish_is_counted_said_once_and_not_guessed(
    act: Callable[[Sequence[RequestView]], Any], caplog: pytest.LogCaptureFixture
) -> None:
    tally = SpecDecodeStats(("custom",), 3)
    watched = GuardedDrafter("custom", Scripted(act), tally, VOCAB)
    with caplog.at_level(logging.ERROR, logger="vllm.forerun"):
        for _ in range(3):
            assert [len(draft) for draft in watched.propose(VIEWS, [3, 3])] == [0, 0]
    assert tally.total(ERRORS) >= 3
    assert len(caplog.records) == 1


def test_one_unsound_draft_does_not_cost_the_others_theirs() -> None:
    drafts = [Draft.chain([VOCAB]), Draft.chain([1, 2])]
    watched = GuardedDrafter("custom", Scripted(lambda views: drafts), SpecDecodeStats(("custom",), 3), VOCAB)
    assert [draft.tokens.tolist() for draft in watched.propose(VIEWS, [3, 3])] == [[], [1, 2]]


def test_a_strange_q_does_no_harm_since_guesses_are_followed() -> None:
    watched = GuardedDrafter("custom", Scripted(always(NAN)), SpecDecodeStats(("custom",), 3), VOCAB)
    assert [draft.tokens.tolist() for draft in watched.propose(VIEWS, [3, 3])] == [[1], [1]]


def test_errors_in_learning_and_forgetting_are_counted_too() -> None:
    tally = SpecDecodeStats(("custom",), 3)
    watched = GuardedDrafter("custom", Scripted(always(Draft.chain([1]))), tally, VOCAB)
    watched.learn("a", Draft.chain([1]), Verdict((), 2))
    watched.forget("a", VIEWS[0])
    assert tally.total(ERRORS) == 3, "learning, a guess where none was asked for, forgetting"


def test_a_drafter_that_took_very_long_rests_a_hundred_times_as_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    slow = Scripted(always(Draft.chain([1])))
    tally = SpecDecodeStats(("custom",), 3)
    watched = GuardedDrafter("custom", slow, tally, VOCAB, clock=lambda: now)

    def take_ten_seconds(views: Sequence[RequestView]) -> list[Draft]:
        nonlocal now
        now += 10.0
        return [Draft.chain([1]) for _ in views]

    slow.act = take_ten_seconds
    with caplog.at_level(logging.WARNING, logger="vllm.forerun"):
        assert [len(draft) for draft in watched.propose(VIEWS, [3, 3])] == [1, 1], "it came, so it counts"
    assert "took 10.0 s and is not asked for 1000 s" in caplog.text
    slow.act = always(Draft.chain([1]))
    for later in (11.0, 500.0, 1009.0):
        now = later
        assert [len(draft) for draft in watched.propose(VIEWS, [3, 3])] == [0, 0]
    assert slow.num_asked == 1
    now = 1011.0
    assert [len(draft) for draft in watched.propose(VIEWS, [3, 3])] == [1, 1]
    assert (tally.total(ERRORS), tally.total(SECONDS)) == (1, 10.0)
