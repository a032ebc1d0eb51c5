from __future__ import annotations

import numpy as np
import pytest

from forerun.core.draft_forest import NONE, Forest
from forerun.errors import InvalidDraft
from forerun.types import Draft, Proposal, Verdict


def tree(tokens: list[int], parents: list[int]) -> Draft:
    return Draft(np.array(tokens), np.array(parents), np.zeros(len(tokens), dtype=bool))


def test_requests_of_different_sizes_are_packed_without_padding() -> None:
    forest = Forest.pack([Draft.chain([1, 2]), Draft.chain([]), tree([3, 4, 5], [-1, -1, 0])])
    assert forest.num_rows == 3 + 1 + 4
    assert forest.roots.tolist() == [0, 3, 4]
    assert forest.tokens.tolist() == [NONE, 1, 2, NONE, NONE, 3, 4, 5]
    assert forest.parent.tolist() == [NONE, 0, 1, NONE, NONE, 4, 4, 5]
    assert forest.depth.tolist() == [0, 1, 2, 0, 0, 1, 1, 2]
    assert forest.first_child.tolist() == [1, 2, NONE, NONE, 5, 7, NONE, NONE]
    assert forest.next_sibling.tolist() == [NONE] * 5 + [6, NONE, NONE]
    assert forest.request_of(np.arange(8)).tolist() == [0, 0, 0, 1, 2, 2, 2, 2]


def test_siblings_keep_their_order_even_when_they_lie_apart() -> None:
    forest = Forest.pack([tree([7, 8, 9, 6], [-1, 0, -1, 0])])
    assert forest.next_sibling.tolist() == [NONE, 3, 4, NONE, NONE]
    assert forest.first_child.tolist() == [1, 2, NONE, NONE, NONE]


def test_a_batch_of_empty_drafts_has_only_roots() -> None:
    forest = Forest.pack([Draft.chain([]), Draft.chain([])])
    assert forest.num_rows == 2
    assert forest.verdicts(forest.roots, np.array([5, 6])) == [Verdict((), 5), Verdict((), 6)]


def test_the_path_to_a_row_has_its_draft_tokens_from_the_root() -> None:
    forest = Forest.pack([Draft.chain([]), tree([3, 4, 5], [-1, -1, 1])])
    assert forest.path(4) == [4, 5]
    assert forest.path(1) == []


def test_verdicts_index_nodes_of_the_draft_not_rows_of_the_batch() -> None:
    forest = Forest.pack([Draft.chain([1, 2]), tree([3, 4, 5], [-1, -1, 1])])
    assert forest.verdicts(np.array([2, 6]), np.array([9, 9])) == [Verdict((0, 1), 9), Verdict((1, 2), 9)]


def test_the_first_of_equal_siblings_is_found() -> None:
    forest = Forest.pack([tree([3, 4, 4], [-1, -1, -1])])
    assert forest.child_with(np.array([0]), np.array([4])).tolist() == [2]
    assert forest.child_with(np.array([0]), np.array([5])).tolist() == [NONE]


@pytest.mark.parametrize(
    "draft",
    [
        tree([1], [0]),
        tree([1, 2], [-1, 5]),
        tree([1], [-2]),
        Draft(np.array([1, 2]), np.array([-1]), np.zeros(2, dtype=bool)),
        Draft(np.array([1]), np.array([-1]), np.ones(1, dtype=bool)),
    ],
)
def test_an_invalid_draft_anywhere_in_a_batch_raises(draft: Draft) -> None:
    with pytest.raises(InvalidDraft):
        Forest.pack([Draft.chain([1, 2, 3]), draft])


def test_a_sampled_draft_token_with_q_of_zero_raises() -> None:
    forest = Forest.pack([Draft.chain([1], q=[Proposal(np.array([1.0, 0.0]))])])
    with pytest.raises(InvalidDraft, match="not sampled from q"):
        forest.q_of_tokens(np.array([1]))
