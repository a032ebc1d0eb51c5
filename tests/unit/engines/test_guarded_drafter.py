"""Faulty drafters: a fault costs draft tokens and never reaches a request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from forerun.engines.guarded_drafter import DraftFormat, GuardedDrafter
from forerun.engines.vllm.metric_names import DRAFT_SECONDS, DRAFTER_ERRORS
from forerun.engines.vllm.stats import SpecDecodeStats
from forerun.types import Draft, Proposal, RequestView, Verdict

VOCAB = 10
CHAINS = DraftFormat(VOCAB, trees=False)
VIEWS = [RequestView("a", [1, 2]), RequestView("b", [3, 4])]


class Scripted:
    """A drafter whose `propose` is given."""

    def __init__(self, act: Callable[[Sequence[RequestView]], Any]) -> None:
        self.act = act
        self.num_calls = 0

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        self.num_calls += 1
        drafts: list[Draft] = self.act(views)
        return drafts

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        raise RuntimeError("cannot learn")

    def forget(self, id: str) -> None:
        raise RuntimeError("cannot forget")


def fail(_: object) -> list[Draft]:
    raise RuntimeError("propose failed")


def always(draft: Any) -> Callable[[Sequence[RequestView]], Any]:
    return lambda views: [draft for _ in views]


Q = Proposal(np.full(VOCAB, 1 / VOCAB))
TREE = Draft(np.array([1, 2]), np.array([-1, -1]), np.array([True, True]), {-1: Q})
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
def test_an_invalid_draft_is_dropped_counted_and_logged_once(
    act: Callable[[Sequence[RequestView]], Any], caplog: pytest.LogCaptureFixture
) -> None:
    stats = SpecDecodeStats(("custom",), 3)
    guarded = GuardedDrafter("custom", Scripted(act), stats, CHAINS)
    with caplog.at_level(logging.ERROR, logger="vllm.forerun"):
        for _ in range(3):
            assert [len(draft) for draft in guarded.propose(VIEWS, [3, 3])] == [0, 0]
    assert stats.total(DRAFTER_ERRORS) >= 3
    assert len(caplog.records) == 1


def test_an_invalid_draft_does_not_affect_the_drafts_of_other_requests() -> None:
    drafts = [Draft.chain([VOCAB]), Draft.chain([1, 2])]
    guarded = GuardedDrafter(
        "custom", Scripted(lambda views: drafts), SpecDecodeStats(("custom",), 3), CHAINS
    )
    assert [draft.tokens.tolist() for draft in guarded.propose(VIEWS, [3, 3])] == [[], [1, 2]]


@pytest.mark.parametrize("label", ["", "another name"])
def test_draft_tokens_carry_the_name_under_which_the_drafter_is_registered(label: str) -> None:
    """Metrics exist for registered names only."""
    stats = SpecDecodeStats(("registered",), 4)
    guarded = GuardedDrafter("registered", Scripted(always(Draft.chain([1, 2], source=label))), stats, CHAINS)
    (draft,) = guarded.propose(VIEWS[:1], [4])
    assert draft.source == ("registered", "registered")
    stats.record_request_step(draft.source, num_tokens=3)


def test_a_nan_q_is_left_to_verification() -> None:
    guarded = GuardedDrafter("custom", Scripted(always(NAN)), SpecDecodeStats(("custom",), 3), CHAINS)
    assert [draft.tokens.tolist() for draft in guarded.propose(VIEWS, [3, 3])] == [[1], [1]]


def test_errors_of_learn_and_forget_are_counted() -> None:
    stats = SpecDecodeStats(("custom",), 3)
    guarded = GuardedDrafter("custom", Scripted(always(Draft.chain([1]))), stats, CHAINS)
    guarded.learn("a", Draft.chain([1]), Verdict((), 2))
    guarded.forget("a", VIEWS[0])
    assert stats.total(DRAFTER_ERRORS) == 3, "learn, a draft over its budget of 0, forget"


def test_a_slow_drafter_is_suspended_for_a_hundred_times_its_duration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    slow = Scripted(always(Draft.chain([1])))
    stats = SpecDecodeStats(("custom",), 3)
    guarded = GuardedDrafter("custom", slow, stats, CHAINS, clock=lambda: now)

    def take_ten_seconds(views: Sequence[RequestView]) -> list[Draft]:
        nonlocal now
        now += 10.0
        return [Draft.chain([1]) for _ in views]

    slow.act = take_ten_seconds
    with caplog.at_level(logging.WARNING, logger="vllm.forerun"):
        assert [len(draft) for draft in guarded.propose(VIEWS, [3, 3])] == [1, 1], (
            "the late draft itself is used"
        )
    assert all(seconds in caplog.text for seconds in ("10.0 s", "1000 s"))
    slow.act = always(Draft.chain([1]))
    for later in (11.0, 500.0, 1009.0):
        now = later
        assert [len(draft) for draft in guarded.propose(VIEWS, [3, 3])] == [0, 0]
    assert slow.num_calls == 1
    now = 1011.0
    assert [len(draft) for draft in guarded.propose(VIEWS, [3, 3])] == [1, 1]
    assert (stats.total(DRAFTER_ERRORS), stats.total(DRAFT_SECONDS)) == (1, 10.0)
