"""Merging several drafts into one tree."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.tree_merge import best_path, merge, verdict_for, verified_part
from forerun.types import ROOT, Draft, Proposal, Verdict

Q = Proposal(torch.full((16,), 1 / 16))


def tree(tokens: list[int], parents: list[int], survival: list[float], source: str) -> Draft:
    return Draft(
        tokens=np.array(tokens, dtype=np.int64),
        parents=np.array(parents, dtype=np.int64),
        sampled=np.zeros(len(tokens), dtype=bool),
        source=(source,) * len(tokens),
        survival=np.array(survival, dtype=np.float32),
    )


def paths(draft: Draft) -> set[tuple[int, ...]]:
    return {tuple(int(draft.tokens[i]) for i in draft.path(node)) for node in range(len(draft))}


def test_equal_draft_tokens_become_one_node_with_both_names() -> None:
    one = tree([1, 2], [-1, 0], [0.9, 0.5], "suffix")
    two = tree([1, 3], [-1, 0], [0.6, 0.55], "ngram")
    merged = merge([one, two])
    merged.check(16)
    assert merged.tokens.tolist() == [1, 3, 2]
    assert merged.parents.tolist() == [ROOT, 0, 0]
    assert merged.source == ("suffix+ngram", "ngram", "suffix")
    assert merged.survival is not None
    assert merged.survival.tolist() == np.array([0.9, 0.55, 0.5], dtype=np.float32).tolist()


def test_empty_and_single_drafts_are_unchanged() -> None:
    one = tree([1], [-1], [0.9], "suffix")
    assert merge([Draft.chain([]), one]) is one
    assert len(merge([])) == 0


def test_sampled_tokens_come_first_and_lookups_continue_below_them() -> None:
    sampled = Draft.chain([5, 6], q=[Q, Q], source="model", survival=np.array([0.1, 0.05], np.float32))
    looked_up = tree([5, 7, 8], [-1, 0, -1], [0.9, 0.8, 0.3], "suffix")
    merged = merge([looked_up, sampled])
    merged.check(16)
    assert merged.tokens.tolist() == [5, 6, 7, 8]
    assert merged.parents.tolist() == [ROOT, 0, 0, ROOT]
    assert merged.sampled.tolist() == [True, True, False, False]
    assert set(merged.q) == {ROOT, 0}


def test_two_sampled_drafts_stand_side_by_side_each_with_its_q() -> None:
    other = Proposal(Q.probs.flip(0))
    one = Draft.chain([3, 5], q=[Q, Q], source="a")
    two = Draft.chain([3, 6], q=[other, other], source="b")
    merged = merge([one, two, tree([3, 7], [-1, 0], [0.5, 0.4], "suffix")])
    merged.check(16)
    assert merged.tokens.tolist() == [3, 5, 3, 6, 7]
    assert merged.parents.tolist() == [ROOT, 0, ROOT, 2, 0]
    assert merged.sampled.tolist() == [True] * 4 + [False]
    proposals = merged.proposals_of_nodes()
    assert [proposals[node] is each for node, each in enumerate((Q, Q, other, other))] == [True] * 4


def test_equal_sampled_tokens_stay_two_nodes() -> None:
    twice = Draft(
        np.array([3, 3]), np.array([-1, -1]), np.array([True, True]), q={ROOT: Q}, source=("a", "a")
    )
    merged = merge([twice, tree([3], [-1], [0.4], "suffix")])
    assert merged.tokens.tolist() == [3, 3]
    assert merged.sampled.all()


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """A tree without equal siblings, its survival decreasing from the root."""
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


@given(given_drafts=st.lists(drafts(), max_size=4))
def test_a_merged_tree_has_every_path_once_ordered_by_survival(given_drafts: list[Draft]) -> None:
    merged = merge(given_drafts)
    merged.check(16)
    assert paths(merged) == set().union(*(paths(draft) for draft in given_drafts))
    if sum(len(draft) > 0 for draft in given_drafts) > 1:
        assert len(paths(merged)) == len(merged)
        assert merged.survival is not None
        assert (np.diff(merged.survival) <= 0).all()


def test_the_verdict_follows_from_the_output() -> None:
    draft = tree([1, 2, 3], [-1, 0, -1], [0.9, 0.5, 0.4], "suffix")
    assert verdict_for(draft, [1, 2, 9]) == Verdict((0, 1), 9)
    assert verdict_for(draft, [3, 7, 8]) == Verdict((2,), 7)
    assert verdict_for(draft, [9]) == Verdict((), 9)


def test_survival_that_increases_along_a_path_does_not_put_a_child_first() -> None:
    rising = tree([1, 2, 3], [-1, 0, 1], [1.0, 2.0, 3.0], "own")
    merged = merge([rising, tree([4], [-1], [0.5], "suffix")])
    merged.check(16)
    assert paths(merged) == {(1,), (1, 2), (1, 2, 3), (4,)}


def test_a_partly_sampled_draft_is_unchanged() -> None:
    mixed = Draft(
        np.array([3, 3, 5]),
        np.array([-1, -1, 0]),
        np.array([True, False, False]),
        q={ROOT: Q},
        source=("a",) * 3,
    )
    merged = merge([mixed, tree([5, 6], [-1, 0], [0.4, 0.3], "suffix")])
    merged.check(16)
    assert merged.tokens.tolist()[:3] == [3, 3, 5]
    assert merged.sampled.tolist() == [True, False, False, False, False]


@given(st.lists(st.tuples(st.integers(-1, 8), st.floats(0.01, 0.99)), min_size=1, max_size=9))
def test_the_best_path_has_the_largest_sum_of_survivals_of_all_paths(nodes: list[tuple[int, float]]) -> None:
    parents = [min(parent, index - 1) for index, (parent, _) in enumerate(nodes)]
    survival = np.array([value for _, value in nodes])
    draft = tree(list(range(len(nodes))), parents, survival.tolist(), "suffix")
    path = best_path(draft, survival)
    assert path.is_chain
    totals = [survival[draft.path(node)].sum() for node in range(len(draft))]
    assert np.isclose(survival[path.tokens].sum(), max(totals)), "tokens are the indices of the nodes"


def test_the_verified_part_has_the_nodes_whose_whole_path_was_verified() -> None:
    own = tree([1, 2, 3, 4], [-1, 0, 1, -1], [0.9, 0.5, 0.4, 0.3], "ngram")
    verified = tree([4, 1, 2], [-1, -1, 1], [0.9, 0.5, 0.4], "suffix")
    assert verified_part(own, verified).tokens.tolist() == [1, 2, 4]
    other = tree([2, 3], [-1, 0], [0.9, 0.5], "suffix")
    assert len(verified_part(own, other)) == 0, "node 2 follows node 1 in one draft, the root in the other"


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_the_verified_part_of_a_chain_is_its_common_prefix(own: list[int], verified: list[int]) -> None:
    common = [a for i, a in enumerate(own) if own[: i + 1] == verified[: i + 1]]
    assert verified_part(Draft.chain(own), Draft.chain(verified)).tokens.tolist() == common


def test_sampled_nodes_are_verified_all_or_not_at_all() -> None:
    sampled = Draft.chain([1, 2], q=[Q, Q], source="model")
    assert verified_part(sampled, sampled) is sampled
    assert len(verified_part(sampled, Draft.chain([1, 2], source="suffix"))) == 0
