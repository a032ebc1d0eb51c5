"""Several drafts in one tree."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.tree_merge import merge, verdict_for
from forerun.types import ROOT, Draft, Proposal, Verdict

Q = Proposal(torch.full((16,), 1 / 16))


def tree(tokens: list[int], parents: list[int], survival: list[float], source: str) -> Draft:
    return Draft(
        tokens=np.array(tokens, dtype=np.int64),
        parents=np.array(parents, dtype=np.int64),
        sampled=np.zeros(len(tokens), dtype=bool),
        source=(source,) * len(tokens),
        evidence=np.array(survival, dtype=np.float32)[:, None],
    )


def paths(draft: Draft) -> set[tuple[int, ...]]:
    return {tuple(int(draft.tokens[i]) for i in draft.path(node)) for node in range(len(draft))}


def test_equal_guesses_become_one_node_with_both_names() -> None:
    one = tree([1, 2], [-1, 0], [0.9, 0.5], "suffix")
    two = tree([1, 3], [-1, 0], [0.6, 0.55], "ngram")
    both = merge([one, two])
    both.check(16)
    assert both.tokens.tolist() == [1, 3, 2]
    assert both.parents.tolist() == [ROOT, 0, 0]
    assert both.source == ("suffix+ngram", "ngram", "suffix")
    assert both.evidence is not None
    assert both.evidence[:, 0].tolist() == np.array([0.9, 0.55, 0.5], dtype=np.float32).tolist()


def test_nothing_and_one_draft_stay_what_they_are() -> None:
    one = tree([1], [-1], [0.9], "suffix")
    assert merge([Draft.chain([]), one]) is one
    assert len(merge([])) == 0


def test_drawn_guesses_come_first_and_lookups_go_on_behind_them() -> None:
    drawn = Draft.chain([5, 6], q=[Q, Q], source="model", evidence=np.array([[0.1], [0.05]], np.float32))
    looked_up = tree([5, 7, 8], [-1, 0, -1], [0.9, 0.8, 0.3], "suffix")
    both = merge([looked_up, drawn])
    both.check(16)
    assert both.tokens.tolist() == [5, 6, 7, 8]
    assert both.parents.tolist() == [ROOT, 0, 0, ROOT]
    assert both.sampled.tolist() == [True, True, False, False]
    assert set(both.q) == {ROOT, 0}


def test_of_two_drawn_drafts_the_first_is_taken() -> None:
    drafts = [Draft.chain([n], q=[Q], source=str(n)) for n in (3, 4)]
    assert merge(drafts).tokens.tolist() == [3]


def test_equal_draws_stay_two_nodes() -> None:
    twice = Draft(
        np.array([3, 3]), np.array([-1, -1]), np.array([True, True]), q={ROOT: Q}, source=("a", "a")
    )
    both = merge([twice, tree([3], [-1], [0.4], "suffix")])
    assert both.tokens.tolist() == [3, 3]
    assert both.sampled.all()


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """A tree without equal siblings, its survivals falling from the root."""
    tokens: list[int] = []
    parents: list[int] = []
    survival: list[float] = []
    for node in range(draw(st.integers(0, 8))):
        parent = draw(st.integers(-1, node - 1))
        token = draw(st.integers(0, 4))
        if (parent, token) in zip(parents, tokens, strict=True):
            continue
        parent = min(parent, len(tokens) - 1)
        tokens.append(token)
        parents.append(parent)
        survival.append(draw(st.floats(0, 1)) * (1.0 if parent == ROOT else survival[parent]))
    return tree(tokens, parents, survival, f"d{draw(st.integers(0, 2))}")


@given(some=st.lists(drafts(), max_size=4))
def test_a_merged_tree_has_every_path_once_and_the_likely_ones_first(some: list[Draft]) -> None:
    both = merge(some)
    both.check(16)
    assert paths(both) == set().union(*(paths(draft) for draft in some))
    if sum(len(draft) > 0 for draft in some) > 1:
        assert len(paths(both)) == len(both)
        assert both.evidence is not None
        assert (np.diff(both.evidence[:, 0]) <= 0).all()


def test_retracing_finds_what_stood_of_a_draft() -> None:
    draft = tree([1, 2, 3], [-1, 0, -1], [0.9, 0.5, 0.4], "suffix")
    assert verdict_for(draft, [1, 2, 9]) == Verdict((0, 1), 9)
    assert verdict_for(draft, [3, 7, 8]) == Verdict((2,), 7)
    assert verdict_for(draft, [9]) == Verdict((), 9)


def test_estimates_that_rise_along_a_path_do_not_put_a_child_first() -> None:
    rising = tree([1, 2, 3], [-1, 0, 1], [1.0, 2.0, 3.0], "own")
    both = merge([rising, tree([4], [-1], [0.5], "suffix")])
    both.check(16)
    assert paths(both) == {(1,), (1, 2), (1, 2, 3), (4,)}


def test_a_draft_that_was_drawn_in_part_stays_as_it_is() -> None:
    mixed = Draft(
        np.array([3, 3, 5]),
        np.array([-1, -1, 0]),
        np.array([True, False, False]),
        q={ROOT: Q},
        source=("a",) * 3,
    )
    both = merge([mixed, tree([5, 6], [-1, 0], [0.4, 0.3], "suffix")])
    both.check(16)
    assert both.tokens.tolist()[:3] == [3, 3, 5]
    assert both.sampled.tolist() == [True, False, False, False, False]
