"""The number of draft tokens that pays, and their order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.control.draft_budget import (
    MIN_RELATIVE_GAIN,
    NUM_SURVIVAL_LEVELS,
    num_worth_verifying,
    order_by_survival,
)


@given(
    survivals=st.lists(st.floats(0.001, 0.999), min_size=1, max_size=60),
    costs=st.lists(st.floats(0.0, 0.3), min_size=3, max_size=3),
)
def test_the_number_of_draft_tokens_is_optimal(survivals: list[float], costs: list[float]) -> None:
    stated = np.sort(survivals)[::-1].copy()
    curve = (np.array([1.0, 8.0, 64.0]), np.array([1.0 + sum(costs[: num + 1]) for num in range(3)]))
    seconds = np.interp(np.arange(1.0, len(stated) + 2), *curve)
    worths = np.cumsum([0.0, *stated]) - 2.0 * (seconds - curve[1][0])
    num, worth = num_worth_verifying(stated, 1.0, 1, curve, 2.0, 0.0)
    assert worths[num] == pytest.approx(worth, abs=1e-9)
    assert max(worths.max(), MIN_RELATIVE_GAIN) == pytest.approx(max(worth, MIN_RELATIVE_GAIN), abs=1e-9)


@given(st.lists(st.floats(0.0, 1.0), max_size=60), st.data())
def test_candidates_are_ordered_by_survival_and_parents_precede_children(
    stated: list[float], data: st.DataObject
) -> None:
    free = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(stated), max_size=len(stated))),
        dtype=bool,
    )
    order = order_by_survival(np.array(stated), free).tolist()
    assert sorted(order) == np.flatnonzero(free).tolist()
    for earlier, later in pairwise(order):
        assert stated[earlier] > stated[later] - 1.01 / NUM_SURVIVAL_LEVELS
    falling = np.cumprod(np.array(stated))  # a chain: survival never increases
    assert order_by_survival(falling, np.ones(len(stated), dtype=bool)).tolist() == list(range(len(stated)))


def test_rows_of_a_block_that_is_paid_for_are_free() -> None:
    survivals = np.array([0.9, 0.5, 0.2, 0.1, 0.05, 0.04, 0.03, 0.03, 0.03])
    staircase = (np.array([1.0, 8.0, 9.0, 16.0]), np.array([1.0, 1.0, 2.0, 2.0]))
    num, _ = num_worth_verifying(survivals, 1.0, 1, staircase, 1.0, 0.0)
    assert num == 7
    slope = (np.array([1.0, 16.0]), np.array([1.0, 2.0]))
    num, _ = num_worth_verifying(survivals, 1.0, 1, slope, 1.0, 0.0)
    assert num == 4
