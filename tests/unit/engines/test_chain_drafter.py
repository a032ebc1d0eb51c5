"""Chains are a pure function of tokens and configuration, whatever the calls before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engines.chain_drafter import PADDING, ChainDrafter, merge_chains, pad_chain
from forerun.engines.guarded_drafter import EMPTY_DRAFT, DrafterTotals
from forerun.types import Draft, Drafter, RequestView, Verdict

VOCAB = 8
texts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60)


def make_chains(drafters: Mapping[str, Drafter] | None = None, *, max_draft: int = 4) -> ChainDrafter:
    made = drafters or {"suffix": SuffixDrafter(chain=True), "ngram": NgramDrafter()}
    return ChainDrafter(made, VOCAB, max_draft=max_draft, counters=DrafterTotals())


def propose(
    chains: ChainDrafter, tokens: Sequence[int], budget: int, drafters: tuple[str, ...] | None = None
) -> list[int]:
    (draft,) = chains.propose([RequestView("r", tokens, num_prompt=1)], [budget], [drafters])
    assert draft.is_chain
    assert not draft.sampled.any()
    drafted: list[int] = draft.tokens.tolist()
    return drafted


@given(texts, st.integers(0, 4))
def test_a_chain_of_a_small_budget_is_a_prefix_of_that_of_a_large_one(text: list[int], budget: int) -> None:
    assert propose(make_chains(), text, budget) == propose(make_chains(), text, 9)[:budget]


@given(texts, st.lists(st.integers(1, 60), max_size=6))
def test_a_chain_does_not_depend_on_earlier_lookups(text: list[int], lengths: list[int]) -> None:
    chains = make_chains()
    for length in sorted(lengths):
        propose(chains, text[: min(length, len(text))], length % 3)
    assert propose(chains, text, 4) == propose(make_chains(), text, 4)


@given(st.lists(st.integers(0, 3), min_size=150, max_size=400), st.lists(st.integers(1, 400), max_size=4))
def test_the_tokens_kept_of_a_long_text_do_not_depend_on_earlier_lookups(
    text: list[int], lengths: list[int]
) -> None:
    def drafters() -> dict[str, Drafter]:
        return {"suffix": SuffixDrafter(chain=True, max_tokens=64), "ngram": NgramDrafter(max_tokens=100)}

    for name in ("suffix", "ngram"):
        chains = make_chains(drafters())
        for length in sorted(lengths):
            propose(chains, text[:length], 1, (name,))
        assert propose(chains, text, 4, (name,)) == propose(make_chains(drafters()), text, 4, (name,))


class Fixed:
    """Proposes one chain."""

    def __init__(self, tokens: Sequence[int], survival: float) -> None:
        self.draft = Draft.chain(
            tokens, survival=np.power(survival, np.arange(1, len(tokens) + 1)).astype(np.float32)
        )
        self.verdicts: list[Verdict] = []

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [self.draft.truncate(budget) for budget in budgets]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def forget(self, id: str) -> None:
        pass


def test_the_chain_with_most_expected_tokens_is_proposed_whatever_the_budget() -> None:
    chains = make_chains({"sure": Fixed([1, 2], 0.8), "long": Fixed([3, 4, 5, 6, 7], 0.7)})
    assert propose(chains, [0], 9) == [3, 4, 5, 6, 7], "0.7 + 0.49 + ... = 1.94 tokens, against 1.44"
    assert propose(chains, [0], 1) == [3], "although 1 is the likelier first token"
    assert propose(chains, [0], 4, ("sure",)) == [1, 2]
    assert propose(chains, [0], 4, ()) == []


def test_a_slow_drafter_is_not_suspended() -> None:
    chains = make_chains()
    assert {drafter.max_seconds for drafter in chains.drafters.values()} == {float("inf")}


def test_the_output_of_a_finished_request_is_shared_even_if_it_was_never_looked_up() -> None:
    chains = make_chains({"suffix": SuffixDrafter(chain=True, share_outputs=True)})
    chains.forget("a", RequestView("a", [0, 1, 2, 3, 4], num_prompt=1))
    assert propose(chains, [5, 1, 2], 2) == [3, 4]
    chains.forget("r")
    assert propose(chains, [5, 6, 7], 2) == []


def test_verdicts_reach_the_drafters_of_a_request() -> None:
    used, unused = Fixed([1], 0.5), Fixed([2], 0.5)
    chains = make_chains({"used": used, "unused": unused})
    propose(chains, [0], 1, ("used",))
    chains.learn("r", Draft.chain([1]), Verdict((0,), 2))
    assert (used.verdicts, unused.verdicts) == ([Verdict((0,), 2)], [])


@pytest.mark.parametrize(
    ("length", "tokens", "num_padding"), [(1, [5], 0), (2, [5, 6], 0), (4, [5, 6, 3, 3], 2)]
)
def test_a_chain_is_padded_to_its_planned_rows(length: int, tokens: list[int], num_padding: int) -> None:
    draft = Draft.chain([5, 6], source="suffix", survival=np.array([0.5, 0.25], dtype=np.float32))
    padded = pad_chain(draft, length, 3)
    assert (padded.tokens.tolist(), padded.is_chain) == (tokens, True)
    assert padded.source == ("suffix",) * (length - num_padding) + (PADDING,) * num_padding
    assert padded.survival is not None
    assert (np.diff(padded.survival) < 0).all()
    assert pad_chain(EMPTY_DRAFT, 2, 3).tokens.tolist() == [3, 3]


def test_nothing_to_merge_is_an_empty_chain() -> None:
    assert len(merge_chains([])) == 0
