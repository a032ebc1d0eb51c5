"""Draft trees as paths: which nodes are kept, and what their rows cost."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.drafters.tree_merge import best_path
from forerun.engines.tree_paths import MAX_ROWS_PER_TOKEN, paths_of, select_paths
from forerun.types import Draft


def tree(parents: list[int], survival: list[float] | None = None) -> Draft:
    num = len(parents)
    return Draft(
        np.arange(num),
        np.array(parents),
        np.zeros(num, dtype=bool),
        source=("suffix",) * num,
        survival=None if survival is None else np.array(survival, dtype=np.float32),
    )


def random_tree(generator: np.random.Generator, num: int) -> tuple[Draft, np.ndarray]:
    parents = [int(generator.integers(-1, node)) for node in range(num)]
    survival: list[float] = []
    for parent in parents:
        survival.append(float(generator.random()) * (1.0 if parent < 0 else survival[parent]))
    return tree(parents), np.array(survival)


def num_rows(draft: Draft) -> int:
    return sum(1 + len(path) for path in paths_of(draft))


def test_the_paths_of_a_tree_end_at_its_leaves_and_the_longest_is_first() -> None:
    assert paths_of(tree([-1, 0, -1, 2, 1, 0])) == [[0, 1, 4], [2, 3], [0, 5]]
    assert paths_of(tree([-1, 0, 1])) == [[0, 1, 2]]


@pytest.mark.parametrize("seed", range(30))
def test_kept_nodes_have_their_ancestors_and_at_most_two_rows_per_token(seed: int) -> None:
    draft, survival = random_tree(np.random.default_rng(seed), 24)
    kept = draft.select(select_paths(draft, survival, 17))
    assert num_rows(kept) <= MAX_ROWS_PER_TOKEN * len(kept)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("max_paths", [1, 2, 3])
def test_there_are_no_more_paths_than_allowed(seed: int, max_paths: int) -> None:
    draft, survival = random_tree(np.random.default_rng(seed), 24)
    kept = select_paths(draft, survival, max_paths)
    assert 1 <= len(paths_of(draft.select(kept))) <= max_paths


@pytest.mark.parametrize("seed", range(30))
def test_a_single_path_contains_the_best_chain(seed: int) -> None:
    draft, survival = random_tree(np.random.default_rng(seed), 24)
    kept = draft.select(select_paths(draft, survival, 1))
    assert kept.tokens.tolist() == best_path(draft, survival).tokens.tolist()


def test_all_nodes_are_kept_where_rows_and_paths_allow() -> None:
    draft = tree([-1, 0, -1, 2, 1, 3])
    assert select_paths(draft, np.full(6, 0.5), 2).all()
    assert select_paths(tree([-1] * 16), np.full(16, 0.1), 16).all()


def test_a_branch_that_repeats_many_tokens_is_left_out_before_a_short_one() -> None:
    """A chain of six, a branch at its fifth token, and one at the root."""
    draft = tree([-1, 0, 1, 2, 3, 4, 4, -1])
    survival = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.1, 0.1])
    assert select_paths(draft, survival, 2).tolist() == [True] * 6 + [False, True]


def test_a_path_must_pay_for_its_rows() -> None:
    draft, survival = tree([-1, 0, -1]), np.array([0.6, 0.5, 0.3])
    assert select_paths(draft, survival, 2, min_gain_per_row=0.1).all()
    assert select_paths(draft, survival, 2, min_gain_per_row=0.2).tolist() == [True, True, False]
