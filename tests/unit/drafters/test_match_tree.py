from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters import match_tree as tree_module
from forerun.drafters.match_tree import Workspace, grow_tree
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
from forerun.types import ROOT, Draft
from unit.drafters import naive

DEPTH = 5


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
    given_rows: list[tuple[int, int, int, list[int]]], budget: int, *, chain: bool = False
) -> Draft:
    work = Workspace(max(budget, 100))
    nodes = np.empty((2, budget), dtype=np.int64)
    survival = np.full(budget, np.nan, dtype=np.float32)
    num = grow_tree(
        as_array(given_rows),
        len(given_rows),
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
        ints[tree_module._RANK, filled], floats[tree_module._SURVIVAL, filled] = filled, survival
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
