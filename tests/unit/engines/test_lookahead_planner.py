"""Draft lengths planned one step ahead: shadow drafts equal the worker's; outcomes arrive one step late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engines.chain_drafter import PADDING, ChainDrafter, pad_chain
from forerun.engines.guarded_drafter import EMPTY_DRAFT, DrafterTotals, DraftFormat
from forerun.engines.lookahead_planner import LookaheadPlanner, LookaheadStep
from forerun.engines.speculative_step import DraftRequest
from forerun.engines.speculator import Speculator
from forerun.engines.top_token_rows import TopRows, chain_top_tokens, learning_order
from forerun.types import Draft, Drafter, RequestView, TopTokens
from unit.engines.toy_engine import CHEAP_ROWS, VOCAB, target_token

MAX_DRAFT = 6


def make_chains(*, share_outputs: bool = False) -> ChainDrafter:
    drafters: dict[str, Drafter] = {
        "suffix": SuffixDrafter(chain=True, share_outputs=share_outputs),
        "ngram": NgramDrafter(),
    }
    return ChainDrafter(drafters, VOCAB, max_draft=MAX_DRAFT, counters=DrafterTotals())


def make_planner(*, adaptive: bool = True, share_outputs: bool = False) -> LookaheadPlanner:
    chains = make_chains(share_outputs=share_outputs)
    draft_format = DraftFormat(VOCAB, trees=False, q=False)
    speculator = Speculator(
        chains.drafters, CHEAP_ROWS, draft_format, adaptive=adaptive, counters=DrafterTotals()
    )
    return LookaheadPlanner(speculator, chains)


def toy_rows(text: Sequence[int], chain: Sequence[int]) -> TopRows:
    """At every row of a chain the target's token and its neighbours."""
    likeliest = [target_token([*text, *chain[:depth]]) for depth in range(len(chain) + 1)]
    tokens = (np.array(likeliest, dtype=np.int32)[:, None] + np.arange(4, dtype=np.int32)) % VOCAB
    return tokens, np.tile(np.array([0.6, 0.2, 0.1, 0.05], dtype=np.float32), (len(tokens), 1))


@dataclass
class Running:
    """A request: the tokens that the scheduler knows, and those that its step in flight emits."""

    text: list[int]
    output: list[int] = field(default_factory=list)
    num_rows: int | None = None

    @property
    def emitted(self) -> list[int]:
        return [*self.text, *self.output]


class AsyncEngine:
    """One scheduler and one worker with drafters of its own, on the toy target."""

    def __init__(self, *, adaptive: bool = True, share_outputs: bool = False) -> None:
        self.planner = make_planner(adaptive=adaptive, share_outputs=share_outputs)
        self.worker = make_chains(share_outputs=share_outputs)
        self.requests: dict[str, Running] = {}
        self.step_in_flight: LookaheadStep | None = None
        self.ended: list[tuple[str, RequestView]] = []
        self.rows: dict[str, TopRows] = {}
        self.unlearned: dict[str, TopTokens] = {}
        self.verified: list[tuple[LookaheadStep, str, Draft]] = []

    def step(self, names: Sequence[str]) -> LookaheadStep:
        """Schedule these requests, receive the step in flight, and run the new step in the worker."""
        running = [self.requests[name] for name in names]
        drafted = [
            DraftRequest(RequestView(name, list(each.text), num_prompt=0), MAX_DRAFT)
            for name, each in zip(names, running, strict=True)
        ]
        step = self.planner.plan(drafted, [each.num_rows for each in running], rows=len(names))
        ended, self.ended = self.ended, []
        is_in_flight = [each.num_rows is not None for each in running]
        if self.step_in_flight is None:
            self._learn_in_worker()
        self.receive()
        for name, view in ended:
            self.worker.forget(name, view)
        views = [
            RequestView(name, each.text, num_prompt=0) for name, each in zip(names, running, strict=True)
        ]
        drafts = [EMPTY_DRAFT] * len(names)
        for group in (False, True):
            indices = [index for index, each in enumerate(is_in_flight) if each is group]
            found = self.worker.propose(
                [views[index] for index in indices],
                [step.lengths[index] for index in indices],
                [None] * len(indices),
            )
            for index, draft in zip(indices, found, strict=True):
                drafts[index] = draft
            self._learn_in_worker()
        for name, each, draft, length in zip(names, running, drafts, step.lengths, strict=True):
            padded = pad_chain(draft, length, each.text[-1])
            self.verified.append((step, name, padded))
            each.output, each.num_rows = self._verify(each.text, padded), length
            if length:
                self.rows[name] = toy_rows(each.text, padded.tokens.tolist())
                own = chain_top_tokens(each.text, draft.tokens.tolist(), self.rows[name])
                num_accepted = min(len(each.output) - 1, len(draft))
                self.unlearned[name] = learning_order(own, range(num_accepted))
        self.step_in_flight = step
        return step

    def receive(self) -> None:
        """The outputs of the step in flight arrive at the scheduler."""
        for name, each in self.requests.items():
            if self.step_in_flight is not None and each.output:
                view = RequestView(name, list(each.text), num_prompt=0)
                self.planner.observe(self.step_in_flight, view, each.output, self.rows.get(name))
            each.text, each.output, each.num_rows = each.emitted, [], None
        if self.step_in_flight is not None:
            self.planner.close(self.step_in_flight, seconds=1.0)
        self.step_in_flight, self.rows = None, {}

    def _learn_in_worker(self) -> None:
        for name in sorted(self.unlearned):
            self.worker.learn_logits(name, self.unlearned[name])
        self.unlearned = {}

    def end(self, name: str) -> None:
        """A request ends with the tokens that are known."""
        view = RequestView(name, self.requests.pop(name).text, num_prompt=0)
        self.planner.forget(name, view)
        self.ended.append((name, view))

    def _verify(self, text: Sequence[int], draft: Draft) -> list[int]:
        target = list(text)
        for token in draft.tokens.tolist():
            target.append(target_token(target))
            if target[-1] != token:
                return target[len(text) :]
        return [*target[len(text) :], target_token(target)]

    def assert_shadow_drafts_equal_verified_drafts(self) -> None:
        assert self.planner.num_mismatches == 0
        for step, name, draft in self.verified:
            index = step.speculation.index(name)
            assert index is not None
            if step.is_revealed[index]:
                assert step.speculation.drafts[index].tokens.tolist() == draft.tokens.tolist()
                assert step.speculation.drafts[index].source == draft.source


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sets(st.sampled_from("abc"), min_size=1), min_size=2, max_size=25),
    st.booleans(),
    st.lists(st.integers(1, 24), max_size=2),
)
def test_the_shadow_draft_equals_the_draft_of_the_worker(
    batches: list[set[str]], adaptive: bool, ends: list[int]
) -> None:
    engine = AsyncEngine(adaptive=adaptive, share_outputs=True)
    for number, batch in enumerate(batches):
        for name in sorted(batch - engine.requests.keys()):
            engine.requests[name] = Running([ord(name) % 10, 3, 4])
        engine.step(sorted(batch))
        if number in ends:
            engine.receive()
            engine.end(min(batch))
    engine.receive()
    engine.assert_shadow_drafts_equal_verified_drafts()
    assert all(all(step.is_revealed) for step, _, _ in engine.verified[:1])


def test_a_planner_that_recycles_other_logits_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = AsyncEngine(adaptive=False)
    engine.requests["a"] = Running([0, 1])

    def learn_nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(engine.planner.chains, "learn_logits", learn_nothing)
    for _ in range(30):
        engine.step(["a"])
    with pytest.raises(AssertionError):
        engine.assert_shadow_drafts_equal_verified_drafts()


def test_a_planner_that_looks_up_from_other_tokens_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = AsyncEngine(adaptive=False)
    engine.requests["a"] = Running([0, 1])
    look_up = engine.planner.chains.look_up

    def look_up_late(
        views: Sequence[RequestView], drafters: Sequence[tuple[str, ...] | None]
    ) -> list[dict[str, Draft]]:
        return look_up([RequestView(view.id, view.tokens[:-1]) for view in views], drafters)

    monkeypatch.setattr(engine.planner.chains, "look_up", look_up_late)
    for _ in range(30):
        engine.step(["a"])
    assert engine.planner.num_mismatches > 10


@pytest.mark.parametrize("adaptive", [False, True])
def test_text_that_repeats_is_decoded_in_fewer_steps(adaptive: bool) -> None:
    engine = AsyncEngine(adaptive=adaptive)
    engine.requests = {"a": Running([1, 2, 3]), "b": Running([5])}
    for _ in range(60):
        engine.step(["a", "b"])
    engine.receive()
    for prompt, each in (([1, 2, 3], engine.requests["a"]), ([5], engine.requests["b"])):
        text = list(prompt)
        while len(text) < len(each.text):
            text.append(target_token(text))
        assert each.text == text
        assert len(text) > 2.5 * 60
    engine.assert_shadow_drafts_equal_verified_drafts()


def test_requests_that_are_not_adaptive_get_as_many_rows_as_allowed() -> None:
    planner = make_planner(adaptive=False)
    request = DraftRequest(RequestView("r", [1, 2]), 5)
    assert planner.plan([request], [0], rows=1).lengths == [5]
    none = DraftRequest(RequestView("s", [1, 2]), 0)
    assert planner.plan([none], [0], rows=1).lengths == [0]


def test_without_a_step_in_flight_no_row_stays_unfilled() -> None:
    planner = make_planner(adaptive=False)
    step = planner.plan([DraftRequest(RequestView("r", [1, 2, 3]), 5)], [None], rows=1)
    assert (step.lengths, step.is_revealed) == ([0], [True]), "no token repeats"
    step = planner.plan([DraftRequest(RequestView("s", [1, 2, 3, 1, 2]), 5)], [None], rows=1)
    assert step.lengths == [5]
    assert step.speculation.drafts[0].tokens[:1].tolist() == [3]


def test_unfilled_rows_count_as_rows_of_the_step() -> None:
    planner = make_planner(adaptive=False)
    step = planner.plan([DraftRequest(RequestView("r", [1]), 4)], [0], rows=1)
    planner.plan([DraftRequest(RequestView("r", [1, 2]), 4)], [4], rows=1)
    assert step.speculation.drafts[0].source == (PADDING,) * 4
    assert step.num_unfilled == 4
    planner.observe(step, RequestView("r", [1, 2]), [5])
    planner.close(step, 1.0)
    assert step.speculation.control.num_rows == 5
    assert step.speculation.verdicts[0] is not None


def test_an_output_that_arrives_before_the_next_plan_is_observed() -> None:
    planner = make_planner(adaptive=False)
    step = planner.plan([DraftRequest(RequestView("r", [1, 2, 3, 1]), 3)], [0], rows=1)
    assert step.is_revealed == [False]
    planner.observe(step, RequestView("r", [1, 2, 3, 1, 2]), [3, 1, 9])
    (draft,) = step.speculation.drafts
    assert draft.tokens.tolist() == [3, 1, 2]
    assert step.speculation.verdicts[0] is not None
    assert step.speculation.verdicts[0].accepted == (0, 1)


def test_the_output_of_a_request_that_ended_or_never_ran_is_ignored() -> None:
    planner = make_planner(adaptive=False)
    step = planner.plan([DraftRequest(RequestView("r", [1, 2]), 3)], [0], rows=1)
    planner.observe(step, RequestView("other", [1]), [1])
    planner.forget("r")
    planner.observe(step, RequestView("r", [1, 2]), [1])
    planner.close(step, 1.0)
    assert step.speculation.verdicts == [None]
    assert not planner.speculator.tracked


def test_rows_that_the_engine_did_not_schedule_are_left_out() -> None:
    planner = make_planner(adaptive=False)
    step = planner.plan([DraftRequest(RequestView("r", [1, 2, 3, 1]), 4)], [0], rows=1)
    step.limit(0, 2)
    planner.plan([DraftRequest(RequestView("r", [1, 2, 3, 1, 2]), 4)], [2], rows=1)
    assert step.speculation.drafts[0].tokens.tolist() == [3, 1]


@pytest.mark.parametrize("drafters", [(), ("model",)])
def test_a_request_without_lookup_drafters_gets_no_rows(drafters: tuple[str, ...]) -> None:
    planner = make_planner(adaptive=False)
    request = DraftRequest(RequestView("r", [1, 2, 1, 2]), 4, drafters)
    assert planner.plan([request], [0], rows=1).lengths == [0]


def test_a_sampled_draft_is_cut_to_the_rows_that_the_engine_scheduled() -> None:
    planner = make_planner(adaptive=False)
    step = planner.plan([DraftRequest(RequestView("r", [1, 2]), 4, ("model",))], [0], rows=1)
    chain = Draft.chain([5, 6, 7], source="model")
    step.use_draft(0, replace(chain, sampled=np.ones(3, dtype=bool)))
    step.limit(0, 2)
    assert (step.lengths, step.speculation.drafts[0].tokens.tolist()) == ([2], [5, 6])
    planner.observe(step, RequestView("r", [1, 2]), [5, 9])
    planner.close(step, 1.0)
    assert step.speculation.verdicts[0] is not None
    assert step.speculation.verdicts[0].accepted == (0,)


def first_token_survival(planner: LookaheadPlanner, source: str) -> float:
    """The calibrated survival of a first draft token that its drafters accept with 0.3."""
    step = planner.speculator.begin_ahead([DraftRequest(RequestView("r", [1]), 4)], 1)
    draft = Draft.chain([1], source=source, survival=np.array([0.3], dtype=np.float32))
    candidates = planner.speculator.merger.candidates(step, [draft])
    return float(planner.speculator.controller.estimate_survival(step.control, candidates)[0])


def test_acceptance_is_learnt_without_planned_rows() -> None:
    planner, text = make_planner(), [1, 2, 3, 4, 5] * 12
    before = first_token_survival(planner, "suffix+ngram")
    for known in range(6, 40):
        step = planner.plan([DraftRequest(RequestView("r", text[:known]), 0)], [0], rows=1)
        assert step.lengths == [0]
    assert first_token_survival(planner, "suffix+ngram") > before + 0.2
