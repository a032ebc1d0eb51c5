from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters import match_tree as tree_module
from forerun.drafters import successor_votes
from forerun.drafters.match_tree import grow_tree
from forerun.drafters.matches import (
    BREAK,
    CONTINUATION,
    CORPUS,
    COUNT,
    MATCH_LENGTH,
    MAX_MATCH,
    OWN,
    SOURCE,
)
from forerun.drafters.recycled_logits import RecycledLogits
from forerun.drafters.static_table import StaticTable
from forerun.drafters.successor_votes import SuccessorArrays, VoteWeights
from forerun.drafters.successors import NUM_SUCCESSORS
from forerun.drafters.tree_workspace import RANK, SURVIVAL, Workspace
from forerun.types import ROOT, Draft, TopTokens
from unit.drafters import naive

DEPTH = 5
TAIL = np.array([7, 8, 9, *range(100, 129)], dtype=np.int32)
"""The last tokens of the text, newest first."""


def successor_sources(
    recycled: list[tuple[int, int, dict[int, float]]],
    static: list[tuple[int, dict[int, float]]],
    weights: VoteWeights | None = None,
) -> SuccessorArrays:
    """Rows recycled for (previous, last) tokens, and rows of the static table for (last)."""
    table, store = StaticTable(200 if static else 0), RecycledLogits(64)
    for last, successors in static:
        table.add(top_tokens((last, last), successors))
    for previous, last, successors in recycled:
        store.add(top_tokens((previous, last), successors))
    return store.arrays, table.successors, table.codes, *(weights or VoteWeights()).arrays


def top_tokens(context: tuple[int, int], successors: dict[int, float]) -> TopTokens:
    """A row of eight successors, padded with tokens of next to no probability."""
    padding = {150 + at: 1e-9 for at in range(NUM_SUCCESSORS - len(successors))}
    tokens, probs = zip(*(successors | padding).items(), strict=True)
    return TopTokens(
        np.array([context], dtype=np.int32),
        np.array([tokens], dtype=np.int32),
        np.array([probs], dtype=np.float32),
    )


NO_SOURCES = successor_sources([], [])


def padded(tokens: list[int]) -> list[int]:
    """A continuation with `BREAK` everywhere after its end."""
    end = tokens.index(BREAK) if BREAK in tokens else DEPTH
    return tokens[:end] + [BREAK] * (DEPTH - end)


rows = st.lists(
    st.tuples(
        st.integers(0, MAX_MATCH),
        st.integers(OWN, CORPUS),
        st.integers(1, 9),
        st.lists(st.integers(BREAK, 2), min_size=DEPTH, max_size=DEPTH).map(padded),
    ),
    max_size=20,
)


def as_array(given_rows: list[tuple[int, int, int, list[int]]]) -> np.ndarray:
    array = np.zeros((max(len(given_rows), 1), CONTINUATION + DEPTH), dtype=np.int32)
    for row, (match, source, count, tokens) in zip(array, given_rows, strict=False):
        row[MATCH_LENGTH], row[SOURCE], row[COUNT], row[CONTINUATION:] = match, source, count, tokens
    return array


def grow_draft(
    given_rows: list[tuple[int, int, int, list[int]]],
    budget: int,
    *,
    chain: bool = False,
    sources: SuccessorArrays | None = None,
) -> Draft:
    work = Workspace(max(budget, 100))
    nodes = np.empty((2, budget), dtype=np.int64)
    survival = np.full(budget, np.nan, dtype=np.float32)
    num = grow_tree(
        as_array(given_rows)[: len(given_rows)],
        TAIL,
        sources or NO_SOURCES,
        chain,
        nodes,
        survival,
        work.ints,
        work.floats,
    )
    tokens, parents = nodes[:, :num]
    return Draft(tokens, parents, np.zeros(num, dtype=np.bool_), survival=survival[:num])


def paths(draft: Draft) -> list[list[int]]:
    return [[int(draft.tokens[at]) for at in draft.path(node)] for node in range(len(draft))]


def survival_of(draft: Draft) -> np.ndarray:
    assert draft.survival is not None
    return draft.survival


@given(rows, st.integers(1, 40))
def test_a_tree_is_the_most_likely_one(
    given_rows: list[tuple[int, int, int, list[int]]], budget: int
) -> None:
    draft = grow_draft(given_rows, budget)
    expected = naive.tree(given_rows, DEPTH, budget)
    assert len(draft) == len(expected)
    assert np.allclose(survival_of(draft), [survival for survival, _ in expected], rtol=1e-4)
    for path, survival in zip(paths(draft), survival_of(draft), strict=True):
        product = 1.0
        for depth in range(len(path)):
            product *= naive.probabilities(given_rows, path[:depth])[path[depth]]
        assert survival == pytest.approx(product, rel=1e-4)


@given(rows, st.integers(2, 40))
def test_the_draft_contract_holds(given_rows: list[tuple[int, int, int, list[int]]], budget: int) -> None:
    draft = grow_draft(given_rows, budget)
    draft.check(vocab_size=3)
    found = paths(draft)
    assert len({tuple(path) for path in found}) == len(found), "siblings are distinct"
    survival = survival_of(draft)
    assert (np.diff(survival) <= 0).all()
    assert (survival > 0).all()
    assert (survival < 1).all()
    shorter = grow_draft(given_rows, budget // 2)
    assert paths(shorter) == found[: len(shorter)], "a smaller budget is a prefix"


@given(rows, st.integers(1, 10))
def test_a_chain_takes_the_best_child_of_each_node(
    given_rows: list[tuple[int, int, int, list[int]]], budget: int
) -> None:
    draft = grow_draft(given_rows, budget, chain=True)
    assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
    for depth, token in enumerate(draft.tokens.tolist()):
        probabilities = naive.probabilities(given_rows, draft.tokens[:depth].tolist())
        assert probabilities[token] == max(probabilities.values())


def test_without_matches_the_draft_is_empty() -> None:
    assert len(grow_draft([], 8)) == 0
    assert len(grow_draft([(4, 0, 1, [BREAK] * 5)], 8)) == 0
    assert grow_draft([(4, 0, 1, [1, BREAK, BREAK, BREAK, BREAK])], 8).parents.tolist() == [ROOT]


def test_longer_and_more_matches_have_more_weight() -> None:
    def first(*given_rows: tuple[int, int, int, list[int]]) -> int:
        return int(grow_draft(list(given_rows), 1).tokens[0])

    assert first((8, 0, 1, [1] * 5), (2, 0, 1, [2] * 5)) == 1
    assert first((2, 0, 1, [1] * 5), *[(2, 0, 1, [2] * 5)] * 3) == 2
    assert first((3, 0, 1, [1] * 5), (3, 0, 1, [2] * 5)) == 1, "the most recent of equals"
    assert first((3, 1, 1, [1] * 5), (3, 0, 1, [2] * 5)) == 2, "the request's own text first"


def test_the_check_for_the_most_likely_tree_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def unranked(survival: float, taken: int, filled: int, budget: int, *work: np.ndarray) -> tuple[int, int]:
        ints, floats = work
        if filled == budget:
            return -1, filled
        ints[RANK, filled], floats[SURVIVAL, filled] = filled, survival
        return filled, filled + 1

    given_rows = [(1, 0, 1, [0, 1, 1, 1, 1]), (1, 0, 1, [1, 1, 1, 1, 1]), (1, 0, 1, [2, 2, 2, 2, 2])]
    expected = [survival for survival, _ in naive.tree(given_rows, DEPTH, 8)]
    assert np.allclose(survival_of(grow_draft(given_rows, 8)), expected, rtol=1e-4)
    branch = naive.sabotaged(tree_module._expand, _rank_node=unranked)
    monkeypatch.setattr(sys.modules[__name__], "grow_tree", naive.sabotaged(grow_tree, _expand=branch))
    assert not np.allclose(survival_of(grow_draft(given_rows, 8)), expected, rtol=1e-4)


def test_a_budget_of_450_is_filled() -> None:
    given_rows = [(1, 0, 1, [row, row, row, row, row]) for row in range(100)]
    draft = grow_draft(given_rows, 450)
    draft.check()
    assert len(draft) == 450


successor_rows = st.dictionaries(
    st.tuples(st.sampled_from([9, 8, 7, 0, 1, 2]), st.sampled_from([8, 7, 0, 1, 2])),
    st.dictionaries(st.integers(0, 9), st.sampled_from([0.5, 0.25, 0.125, 2**-6]), min_size=1, max_size=6),
    max_size=8,
)
static_rows = st.dictionaries(
    st.sampled_from([7, 0, 1, 2]),
    st.dictionaries(st.integers(0, 9), st.sampled_from([0.5, 0.25]), min_size=1, max_size=4),
    max_size=4,
)
ALL_WEIGHTS = VoteWeights(last_logits=(1.0, 0.3), medium_match=0.4, long_match=0.2)


def successor_tree(
    given_rows: list[tuple[int, int, int, list[int]]],
    recycled: dict[tuple[int, int], dict[int, float]],
    static: dict[int, dict[int, float]],
    budget: int,
) -> tuple[Draft, naive.Successors]:
    """The draft from matches and successors, and the reference of the latter."""
    rows_of = [(previous, last, row) for (previous, last), row in recycled.items()]
    sources = successor_sources(rows_of, [*static.items()], ALL_WEIGHTS)
    reference = naive.Successors(TAIL.tolist(), rows_of, [*static.items()], ALL_WEIGHTS)
    return grow_draft(given_rows, budget, sources=sources), reference


def check_against_reference(
    given_rows: list[tuple[int, int, int, list[int]]], draft: Draft, reference: naive.Successors
) -> None:
    """Survivals agree up to the coding of probabilities and the successors that pad short rows."""
    for path, survival in zip(paths(draft), survival_of(draft), strict=True):
        product = 1.0
        for depth in range(len(path)):
            product *= naive.probabilities(given_rows, path[:depth], reference).get(path[depth], 0.0)
        assert survival == pytest.approx(product, rel=0.05, abs=0.02)


@given(rows, successor_rows, static_rows, st.integers(1, 30))
def test_successors_vote_beside_matches(
    given_rows: list[tuple[int, int, int, list[int]]],
    recycled: dict[tuple[int, int], dict[int, float]],
    static: dict[int, dict[int, float]],
    budget: int,
) -> None:
    draft, reference = successor_tree(given_rows, recycled, static, budget)
    draft.check(vocab_size=200)
    assert len({tuple(path) for path in paths(draft)}) == len(draft), "siblings are distinct"
    assert (np.diff(survival_of(draft)) <= 0).all()
    check_against_reference(given_rows, draft, reference)


def test_the_check_of_successor_votes_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    recycled = {(8, 7): {1: 0.5, 2: 0.25}, (9, 8): {7: 0.5, 3: 0.5}}
    draft, reference = successor_tree([], recycled, {}, 8)
    check_against_reference([], draft, reference)

    def without_pair(arrays: tuple[np.ndarray, ...], previous: int, last: int) -> int:
        return -1

    votes = naive.sabotaged(successor_votes.add_successor_votes, find_pair=without_pair)
    branch = naive.sabotaged(tree_module._expand, add_successor_votes=votes)
    monkeypatch.setattr(sys.modules[__name__], "grow_tree", naive.sabotaged(grow_tree, _expand=branch))
    draft, reference = successor_tree([], recycled, {}, 8)
    with pytest.raises(AssertionError):
        check_against_reference([], draft, reference)


def test_the_runners_up_of_the_last_token_are_proposed_after_it() -> None:
    recycled = {(9, 8): {7: 0.6, 3: 0.3, 4: 0.1}}
    draft, _ = successor_tree([], recycled, {}, 2)
    assert draft.tokens.tolist() == [3, 4]
    assert draft.parents.tolist() == [ROOT, ROOT]


def test_a_source_without_weight_has_no_votes() -> None:
    recycled = [(8, 7, {1: 0.9}), (9, 8, {3: 0.9})]
    none = VoteWeights.of_sources(recycled=False, last_logits=False)
    assert len(grow_draft([], 4, sources=successor_sources(recycled, [], none))) == 0
    only_last = VoteWeights.of_sources(recycled=False)
    assert grow_draft([], 1, sources=successor_sources(recycled, [], only_last)).tokens.tolist() == [3]
    only_recycled = VoteWeights.of_sources(last_logits=False)
    assert grow_draft([], 1, sources=successor_sources(recycled, [], only_recycled)).tokens.tolist() == [1]
