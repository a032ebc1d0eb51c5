from __future__ import annotations

from collections.abc import Sequence

import naive
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forerun.drafters import context_index as index_module
from forerun.drafters.context_index import MOST_WALKED, NOWHERE, ContextIndex, recall, recall_own
from forerun.drafters.matches import AHEAD, BREAK, COUNT, LONGEST, MATCH, PLACE

DEPTH = 6

tokens = st.integers(0, 3)
texts = st.lists(tokens, min_size=1, max_size=150)
repeating = st.builds(
    lambda block, times, rest: block * times + rest,
    st.lists(tokens, min_size=1, max_size=40),
    st.integers(1, 5),
    st.lists(tokens, max_size=10),
)
outputs = st.lists(st.lists(tokens, min_size=1, max_size=60), min_size=1, max_size=4)


def own_sightings(index: ContextIndex, most: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """The rows for the text's own end: those of its context, and those of its frequent tokens."""
    rows = np.full((most + 16, AHEAD + DEPTH), -9, dtype=np.int32)
    num = recall_own(index.book, index.meta, np.empty(LONGEST, dtype=np.int32), rows, DEPTH, most)
    split = next((row for row in range(num) if rows[row, MATCH] == 0), num)
    return rows[:split], rows[split:num]


def agree(rows: np.ndarray, text: Sequence[int], expected: list[tuple[int, int]], *, own: bool) -> bool:
    """Whether rows hold the expected matches at the expected places, and what follows there."""
    found = [(int(row[MATCH]), int(row[PLACE])) for row in rows]
    following = [naive.ahead(text, place + 1, DEPTH, own=own) for _, place in expected]
    return found == expected and rows[:, AHEAD:].tolist() == following


@given(texts | repeating)
@example([0] * 100)
@example([0, 1, 2, 3] * 30)
def test_a_text_finds_its_own_end_where_it_was_before(text: list[int]) -> None:
    index = ContextIndex()
    index.extend(naive.ints(text))
    rows, frequent = own_sightings(index)
    assert agree(rows, text, naive.sightings(text, text, 200, own=True), own=True)
    assert sorted((int(row[COUNT]), int(row[PLACE]) + 1) for row in frequent) == naive.frequent(text)
    for row in frequent:
        assert row[AHEAD:].tolist() == naive.ahead(text, int(row[PLACE]) + 1, DEPTH, own=True)


@given(texts | repeating)
def test_the_longest_match_is_found_unless_its_rung_is_crowded(text: list[int]) -> None:
    index = ContextIndex()
    index.extend(naive.ints(text))
    rows, _ = own_sightings(index)
    found = naive.places(text, text, own=True)
    longest = max((length for length, _ in found), default=0)
    rung = longest.bit_length() - 1
    if longest and sum(length >= 1 << rung for length, _ in found) <= MOST_WALKED:
        assert rows[:, MATCH].max() == longest
    assert (longest == 0) == (len(rows) == 0)


@given(outputs, texts | repeating)
def test_another_text_is_searched_without_crossing_its_breaks(
    parts: list[list[int]], context: list[int]
) -> None:
    text = [token for part in parts for token in [*part, BREAK]]
    index = ContextIndex()
    index.extend(naive.ints(text))
    tail = np.full(LONGEST, BREAK - 1, dtype=np.int32)
    newest = context[::-1][:LONGEST]
    tail[: len(newest)] = newest
    rows = np.full((200, AHEAD + DEPTH), -9, dtype=np.int32)
    num = recall(index.book, index.heads, index.meta, tail, rows, DEPTH)
    assert agree(rows[:num], text, naive.sightings(text, context, 200, own=False), own=False)


@given(repeating, st.lists(st.integers(1, 30), max_size=20))
def test_it_does_not_matter_in_how_many_parts_a_text_comes(text: list[int], cuts: list[int]) -> None:
    whole, parts = ContextIndex(), ContextIndex(room=1)
    whole.extend(naive.ints(text))
    start = 0
    for size in [*cuts, len(text)]:
        parts.extend(naive.ints(text[start : start + size]))
        start += size
    assert whole.text.tolist() == parts.text.tolist() == text
    for mine, other in zip(own_sightings(whole), own_sightings(parts), strict=True):
        assert (mine == other).all()


def test_the_test_against_the_naive_search_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts that are seen twice must climb; without that, the rungs above miss their first sighting."""
    text = [*range(40), *(token for other in range(50, 90) for token in (other, 39)), *range(40)]
    expected = naive.sightings(text, text, 200, own=True)
    for sabotage in (False, True):
        index = ContextIndex()
        if sabotage:
            climb = naive.sabotaged(index_module._climb, _lift=lambda text, heads, meta, there, rung: None)
            monkeypatch.setattr(index_module, "feed", naive.sabotaged(index_module.feed, _climb=climb))
        index.extend(naive.ints(text))
        assert agree(own_sightings(index)[0], text, expected, own=True) != sabotage


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_a_slot_that_looks_like_the_right_one_is_looked_at_twice(token: int, other: int) -> None:
    """Two contexts under one key, as somebody might make them up, are still two contexts."""
    index = ContextIndex()
    key = np.uint64(7)
    index.book[-1, :2] = token, other
    enter = index_module._enter
    assert enter(index.book[-1], index.heads, index.meta, key, 0, 0) == NOWHERE
    assert enter(index.book[-1], index.heads, index.meta, key, 0, 1) == (0 if token == other else NOWHERE)
    assert enter(index.book[-1], index.heads, index.meta, key, 1, 1) == NOWHERE, "another rung"


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_at_its_bound_the_older_half_is_forgotten(seed: int) -> None:
    text = np.random.default_rng(seed).integers(0, 4, 500).astype(np.int32)
    index = ContextIndex(room=10, most=128)
    for start in range(0, 500, 7):
        index.extend(text[start : start + 7])
        assert len(index) <= 128
        assert index.book.shape[1] <= 128
    kept = index.text.tolist()
    assert len(kept) >= 64
    assert kept == text.tolist()[-len(kept) :]
    assert agree(own_sightings(index)[0], kept, naive.sightings(kept, kept, 200, own=True), own=True)


def test_a_long_text_that_repeats_nothing_takes_few_bytes_a_token() -> None:
    index = ContextIndex(room=20_000)
    index.extend(np.arange(20_000, dtype=np.int32))
    assert index.num_bytes / len(index) < 60


@pytest.mark.parametrize("most", [1, 3, 16])
def test_no_more_sightings_are_noted_than_asked_for(most: int) -> None:
    text = [0, 1] * 40
    index = ContextIndex()
    index.extend(naive.ints(text))
    rows, _ = own_sightings(index, most)
    assert agree(rows, text, naive.sightings(text, text, most, own=True), own=True)
    assert len(rows) == most
