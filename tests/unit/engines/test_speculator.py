"""One drafting lifecycle for every engine: a third engine uses it unchanged, and drafters are merged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engines.guarded_drafter import DrafterTotals, DraftFormat
from forerun.engines.speculative_step import DraftRequest
from forerun.engines.speculator import MODEL, Speculator
from forerun.engines.top_token_rows import rejected_first, row_contexts
from forerun.errors import InvalidRequest
from forerun.types import Draft, RequestView, TopTokens, Verdict
from unit.engines.toy_engine import CHEAP_ROWS, VOCAB, ToyEngine, target_token

PROMPTS = {"a": [1, 2, 3], "b": [9, 4, 9, 4, 9], "c": [7, 7]}


def baseline(prompt: Sequence[int], num_tokens: int) -> list[int]:
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(target_token(text))
    return text[len(prompt) :]


class Scripted:
    """Proposes given chains in turn, each with these survivals, and records its verdicts."""

    def __init__(self, *chains: Sequence[int], survival: float = 0.9) -> None:
        self.chains = list(chains)
        self.survival = survival
        self.verdicts: list[tuple[list[int], Verdict]] = []
        self.num_proposals = 0

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        self.num_proposals += len(views)
        chain = self.chains.pop(0) if self.chains else []
        survival = np.power(self.survival, np.arange(1, len(chain) + 1)).astype(np.float32)
        return [Draft.chain(chain, survival=survival) for _ in views]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        self.verdicts.append((draft.tokens.tolist(), verdict))

    def forget(self, id: str) -> None:
        pass


def make_speculator(*, trees: bool, **drafters: Scripted) -> Speculator:
    draft_format = DraftFormat(VOCAB, trees=trees)
    return Speculator(drafters, CHEAP_ROWS, draft_format, adaptive=False, counters=DrafterTotals())


def request(*drafters: str, max_tokens: int = 8) -> DraftRequest:
    return DraftRequest(RequestView("r", [1, 2]), max_tokens, drafters or None)


@pytest.mark.parametrize("trees", [False, True])
def test_a_third_engine_has_the_output_of_decoding_without_drafts_in_fewer_steps(trees: bool) -> None:
    engine = ToyEngine({"suffix": SuffixDrafter(chain=not trees), "ngram": NgramDrafter()}, trees=trees)
    assert engine.generate(PROMPTS, 200) == {name: baseline(prompt, 200) for name, prompt in PROMPTS.items()}
    assert len(engine.verified) < 200 * len(PROMPTS) * 0.5
    assert not engine.totals.errors
    assert not engine.speculator.tracked
    assert all(draft.is_chain for draft in engine.verified) or trees


@pytest.mark.parametrize("trees", [False, True])
def test_all_drafters_of_a_request_draft_and_each_learns_the_verdict_on_its_own_draft(trees: bool) -> None:
    short, long = Scripted([5, 6, 9]), Scripted([5, 6, 7, 8])
    speculator = make_speculator(trees=trees, short=short, long=long)
    step = speculator.draft([request()], rows=1)
    speculator.choose(step)
    (draft,) = step.drafts
    paths = {tuple(draft.tokens[draft.path(node)].tolist()) for node in range(len(draft))}
    assert (5, 6, 7, 8) in paths, "the longer continuation is expected to emit more tokens"
    assert ((5, 6, 9) in paths) == trees, "a chain has room for one continuation, a tree for both"
    assert draft.source[:2] == ("short+long", "short+long")
    nodes = [draft.tokens.tolist().index(token) for token in (5, 6, 7)]
    speculator.observe(step, "r", Verdict(tuple(nodes), 4))
    verified_by_short = [5, 6, 9] if trees else [5, 6]
    assert short.verdicts == [(verified_by_short, Verdict((0, 1), 7))]
    assert long.verdicts == [([5, 6, 7, 8], Verdict((0, 1, 2), 4))]


def test_drafters_see_a_request_that_ends_before_any_draft_was_looked_up() -> None:
    used, unused = Scripted(), Scripted()
    speculator = Speculator(
        {"used": used, "unused": unused},
        CHEAP_ROWS,
        DraftFormat(VOCAB, trees=False),
        counters=DrafterTotals(),
    )
    for backoff in speculator.controller.accounting.lookup_backoff:
        backoff._remaining = 8
    speculator.draft([request("used")], rows=1)
    assert used.num_proposals == 0
    speculator.forget("r", RequestView("r", [1, 2, 3]))
    assert (used.num_proposals, unused.num_proposals) == (1, 0), "it proposes to see the last tokens"


@pytest.mark.parametrize("trees", [False, True])
def test_a_request_that_names_drafters_uses_these_alone(trees: bool) -> None:
    first, second = Scripted([5], [5]), Scripted([6], [6])
    speculator = make_speculator(trees=trees, first=first, second=second)
    step = speculator.draft([request("second")], rows=1)
    assert [draft.tokens.tolist() for draft in step.drafts] == [[6]]
    assert (first.num_proposals, second.num_proposals) == (0, 1)
    step = speculator.draft([DraftRequest(RequestView("r", [1, 2]), 8, ())], rows=1)
    assert [len(draft) for draft in step.drafts] == [0]
    with pytest.raises(InvalidRequest, match="first, second"):
        speculator.check_known(["third"])


def test_the_best_chain_is_the_one_with_most_expected_tokens_not_the_longest() -> None:
    likely, long = Scripted([5, 6], survival=0.99), Scripted([7, 8, 9], survival=0.3)
    step = make_speculator(trees=False, likely=likely, long=long).draft([request()], rows=1)
    assert step.drafts[0].tokens.tolist() == [5, 6]


def test_an_engine_of_chains_verifies_the_best_path_of_a_tree() -> None:
    class Tree(Scripted):
        def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
            survival = np.array([0.5, 0.4, 0.3, 0.3], dtype=np.float32)
            parents, sampled = np.array([-1, -1, 0, 1]), np.zeros(4, dtype=bool)
            return [Draft(np.array([5, 6, 7, 8]), parents, sampled, survival=survival) for _ in views]

    step = make_speculator(trees=False, only=Tree()).draft([request()], rows=1)
    assert step.drafts[0].tokens.tolist() == [5, 7]
    assert step.drafts[0].is_chain


def test_draft_tokens_that_were_not_verified_are_not_reported_as_rejected() -> None:
    drafter = Scripted([5, 6, 7])
    speculator = make_speculator(trees=False, only=drafter)
    step = speculator.draft([request()], rows=1)
    speculator.choose(step)
    speculator.observe(step, "r", Verdict((0,), 6), num_verified=1)
    assert drafter.verdicts == [([5], Verdict((0,), 6))]
    assert [mask.tolist() for mask in step.outcome_masks()] == [[True, False, False], [True, False, False]]


@pytest.mark.parametrize("num_verified", range(5))
@pytest.mark.parametrize("num_accepted", range(5))
def test_a_single_drafter_learns_the_same_whether_or_not_another_one_had_nothing_to_propose(
    num_verified: int, num_accepted: int
) -> None:
    chain = [4, 5, 6, 7]
    verdict = Verdict(tuple(range(min(num_accepted, num_verified))), chain[-1])
    learnt = []
    for other in ([], [1, 1]):  # with a second proposal, each drafter's verdict is derived from the output
        speculator = make_speculator(trees=False, a=Scripted(chain), b=Scripted(other))
        step = speculator.draft([request()], rows=1)
        assert step.drafts[0].tokens.tolist() == chain
        speculator.observe(step, "r", verdict, num_verified)
        drafter = speculator.drafters["a"].drafter
        assert isinstance(drafter, Scripted)
        learnt.append(drafter.verdicts)
    assert learnt[0] == learnt[1]
    assert bool(learnt[0]) == bool(num_verified)


@pytest.mark.parametrize(("token", "resumes"), [(4, True), (5, False)])
def test_a_suspended_class_resumes_once_the_output_has_what_was_looked_up(token: int, resumes: bool) -> None:
    chains = Scripted(*[[4, 6]] * 200)
    speculator = Speculator({"a": chains}, CHEAP_ROWS, DraftFormat(VOCAB), counters=DrafterTotals())
    step = speculator.draft([request()], rows=1)
    guard = speculator.controller.accounting.level(step.control).guards[1]
    guard._remaining, guard._matches_before = 400, (10.0, 2.0)
    num_steps = 0
    while guard.is_suspended and num_steps < 200:
        step = speculator.draft([request()], rows=1)
        speculator.choose(step)
        assert not len(step.drafts[0]), "suspended"
        speculator.observe(step, "r", Verdict((), token))
        speculator.close(step, 0.02)
        num_steps += 1
    assert guard.is_suspended != resumes
    assert chains.num_proposals < 40, "few lookups"


def test_the_verdict_on_a_request_that_ended_since_is_ignored() -> None:
    drafter = Scripted([5, 6])
    speculator = make_speculator(trees=False, only=drafter)
    step = speculator.draft([request()], rows=1)
    speculator.choose(step)
    speculator.forget("r")
    speculator.observe(step, "r", Verdict((0, 1), 7))
    speculator.close(step, 1.0)
    assert drafter.verdicts == []


def sampled_chain(*tokens: int) -> Draft:
    """A sampled chain whose drafter states survivals that depend on the values."""
    chain = Draft.chain(tokens, source=MODEL)
    survival = np.cumprod(np.array(tokens) / 10).astype(np.float32)
    sampled = np.ones(len(chain), dtype=bool)
    return Draft(chain.tokens, chain.parents, sampled, source=chain.source, survival=survival)


def test_whether_a_sampled_draft_is_used_does_not_depend_on_its_values() -> None:
    for tokens in ((1, 1, 1), (9, 9, 9)):
        speculator = make_speculator(trees=False, lookup=Scripted([5], survival=0.2))
        step = speculator.draft([request()], rows=1)
        assert speculator.merger.offer_sampled(step, MODEL, [sampled_chain(*tokens)]) == {"r"}
        sure = make_speculator(trees=False, lookup=Scripted([5, 6, 7, 8], survival=0.99))
        step = sure.draft([request()], rows=1)
        assert sure.merger.offer_sampled(step, MODEL, [sampled_chain(*tokens)]) == frozenset()
        assert step.drafts[0].tokens.tolist() == [5, 6, 7, 8]


def test_a_baseline_step_of_an_adaptive_request_uses_no_sampled_draft() -> None:
    draft_format = DraftFormat(VOCAB, trees=False)
    speculator = Speculator({}, CHEAP_ROWS, draft_format, counters=DrafterTotals())
    step = speculator.draft([request()], rows=1)
    step.control.is_baseline = True
    assert speculator.merger.offer_sampled(step, MODEL, [sampled_chain(5)]) == frozenset()
    assert len(step.drafts[0]) == 0


class Learning(Scripted):
    """Records the rows whose logits it learns from."""

    def __init__(self, *chains: Sequence[int]) -> None:
        super().__init__(*chains)
        self.contexts: list[list[list[int]]] = []

    def learn_logits(self, id: str, top_tokens: TopTokens) -> None:
        self.contexts.append(top_tokens.contexts.tolist())


def rows_of(text: Sequence[int], draft: Draft) -> TopTokens:
    contexts = row_contexts(text, draft)
    tokens = np.zeros((len(contexts), 8), dtype=np.int32)
    return TopTokens(contexts, tokens, np.full((len(contexts), 8), 0.1, dtype=np.float32))


def test_drafters_learn_from_the_logits_of_rejected_rows_first() -> None:
    learning, other = Learning([5, 6, 7]), Scripted()
    speculator = make_speculator(trees=False, learning=learning, other=other)
    step = speculator.draft([request()], rows=1)
    assert step.wants_logits == {0}
    speculator.choose(step)
    speculator.observe(step, "r", Verdict((0,), 9), top_tokens=rows_of([1, 2], step.drafts[0]))
    assert learning.contexts == [[[6, 7], [5, 6], [1, 2], [2, 5]]]


def test_rows_of_a_tree_have_the_tokens_of_their_own_branch() -> None:
    tree = Draft(np.array([5, 6, 7, 8]), np.array([-1, -1, 0, 1]), np.zeros(4, dtype=bool))
    assert row_contexts([1, 2], tree).tolist() == [[1, 2], [2, 5], [2, 6], [5, 7], [6, 8]]
    assert row_contexts([2], Draft.chain([])).tolist() == [[-1, 2]]
    assert rejected_first((1, 3), 5).tolist() == [3, 1, 0, 2, 4]
    assert rejected_first((0, 1), 2).tolist() == [0, 1], "rows that were not verified have no logits"


def test_no_logits_are_wanted_for_drafters_that_do_not_learn_from_them_or_were_not_asked() -> None:
    speculator = make_speculator(trees=False, learning=Learning([5]), other=Scripted([5]))
    assert speculator.draft([request("other")], rows=1).wants_logits == frozenset()
    assert speculator.draft([request("learning")], rows=1).wants_logits == {0}
    assert speculator.draft([request("learning", max_tokens=0)], rows=1).wants_logits == frozenset()


def test_a_failing_learner_costs_no_request() -> None:
    class Failing(Learning):
        def learn_logits(self, id: str, top_tokens: TopTokens) -> None:
            raise ValueError

    totals = DrafterTotals()
    draft_format = DraftFormat(VOCAB, trees=False)
    failing = Failing([5], [6])
    speculator = Speculator({"failing": failing}, CHEAP_ROWS, draft_format, adaptive=False, counters=totals)
    step = speculator.draft([request()], rows=1)
    speculator.observe(step, "r", Verdict((0,), 9), top_tokens=rows_of([1, 2], step.drafts[0]))
    assert totals.errors == {"failing": 1}
    assert failing.verdicts == [([5], Verdict((0,), 9))]
