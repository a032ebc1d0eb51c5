from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forerun.drafters import context_index as index_module
from forerun.drafters.context_index import NO_POSITION, ContextIndex
from forerun.drafters.context_lookup import MAX_WALK, look_up, look_up_own
from forerun.drafters.matches import BREAK, CONTINUATION, COUNT, MATCH_LENGTH, MAX_MATCH, POSITION
from unit.drafters import naive

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


def own_matches(index: ContextIndex, max_matches: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Rows for the text's own end: matches of its context, and its frequent tokens."""
    rows = np.full((max_matches + 16, CONTINUATION + DEPTH), -9, dtype=np.int32)
    num = look_up_own(
        index.token_table, index.counters, np.empty(MAX_MATCH, dtype=np.int32), rows, DEPTH, max_matches
    )
    split = next((row for row in range(num) if rows[row, MATCH_LENGTH] == 0), num)
    return rows[:split], rows[split:num]


def agree(rows: np.ndarray, text: Sequence[int], expected: list[tuple[int, int]], *, own: bool) -> bool:
    """Whether rows hold the expected match lengths, positions and continuations."""
    found = [(int(row[MATCH_LENGTH]), int(row[POSITION])) for row in rows]
    following = [naive.continuation(text, position + 1, DEPTH, own=own) for _, position in expected]
    return found == expected and rows[:, CONTINUATION:].tolist() == following


@given(texts | repeating)
@example([0] * 100)
@example([0, 1, 2, 3] * 30)
def test_a_text_finds_earlier_occurrences_of_its_own_end(text: list[int]) -> None:
    index = ContextIndex()
    index.extend(naive.ints(text))
    rows, frequent = own_matches(index)
    assert agree(rows, text, naive.matches(text, text, 200, own=True), own=True)
    assert sorted((int(row[COUNT]), int(row[POSITION]) + 1) for row in frequent) == naive.frequent(text)
    for row in frequent:
        assert row[CONTINUATION:].tolist() == naive.continuation(
            text, int(row[POSITION]) + 1, DEPTH, own=True
        )


@given(texts | repeating)
def test_the_longest_match_is_found_unless_its_level_exceeds_the_walk_limit(text: list[int]) -> None:
    index = ContextIndex()
    index.extend(naive.ints(text))
    rows, _ = own_matches(index)
    found = naive.occurrences(text, text, own=True)
    longest = max((length for length, _ in found), default=0)
    level = longest.bit_length() - 1
    if longest and sum(length >= 1 << level for length, _ in found) <= MAX_WALK:
        assert rows[:, MATCH_LENGTH].max() == longest
    assert (longest == 0) == (len(rows) == 0)


@given(outputs, texts | repeating)
def test_matches_in_another_text_do_not_cross_its_breaks(parts: list[list[int]], context: list[int]) -> None:
    text = [token for part in parts for token in [*part, BREAK]]
    index = ContextIndex()
    index.extend(naive.ints(text))
    tail = np.full(MAX_MATCH, BREAK - 1, dtype=np.int32)
    newest = context[::-1][:MAX_MATCH]
    tail[: len(newest)] = newest
    rows = np.full((200, CONTINUATION + DEPTH), -9, dtype=np.int32)
    num = look_up(index.token_table, index.hash_table, index.counters, tail, rows, DEPTH)
    assert agree(rows[:num], text, naive.matches(text, context, 200, own=False), own=False)


@given(repeating, st.lists(st.integers(1, 30), max_size=20))
def test_the_index_does_not_depend_on_how_the_text_is_split(text: list[int], cuts: list[int]) -> None:
    whole, parts = ContextIndex(), ContextIndex(capacity=1)
    whole.extend(naive.ints(text))
    start = 0
    for size in [*cuts, len(text)]:
        parts.extend(naive.ints(text[start : start + size]))
        start += size
    assert whole.text.tolist() == parts.text.tolist() == text
    for own, other in zip(own_matches(whole), own_matches(parts), strict=True):
        assert (own == other).all()


def test_the_comparison_with_the_naive_search_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without promotion at the second occurrence, higher levels miss the first occurrence."""
    text = [*range(40), *(token for other in range(50, 90) for token in (other, 39)), *range(40)]
    expected = naive.matches(text, text, 200, own=True)
    for sabotage in (False, True):
        index = ContextIndex()
        if sabotage:
            index_position = naive.sabotaged(
                index_module._index_position,
                _promote=lambda text, hash_table, counters, previous, level: None,
            )
            monkeypatch.setattr(
                index_module,
                "append_tokens",
                naive.sabotaged(index_module.append_tokens, _index_position=index_position),
            )
        index.extend(naive.ints(text))
        assert agree(own_matches(index)[0], text, expected, own=True) != sabotage


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_contexts_with_equal_hashes_are_compared_token_by_token(token: int, other: int) -> None:
    """Contexts with a crafted hash collision stay distinct."""
    index = ContextIndex()
    key = np.uint64(7)
    index.token_table[-1, :2] = token, other
    insert = index_module._insert
    assert insert(index.token_table[-1], index.hash_table, index.counters, key, 0, 0) == NO_POSITION
    assert insert(index.token_table[-1], index.hash_table, index.counters, key, 0, 1) == (
        0 if token == other else NO_POSITION
    )
    assert insert(index.token_table[-1], index.hash_table, index.counters, key, 1, 1) == NO_POSITION, (
        "another level"
    )


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_at_its_bound_the_index_drops_the_older_half(seed: int) -> None:
    text = np.random.default_rng(seed).integers(0, 4, 500).astype(np.int32)
    index = ContextIndex(capacity=10, max_tokens=128)
    for start in range(0, 500, 7):
        index.extend(text[start : start + 7])
        assert len(index) <= 128
        assert index.token_table.shape[1] <= 128
    kept = index.text.tolist()
    assert len(kept) >= 64
    assert kept == text.tolist()[-len(kept) :]
    assert agree(own_matches(index)[0], kept, naive.matches(kept, kept, 200, own=True), own=True)


def test_text_without_repetition_takes_less_than_60_bytes_per_token() -> None:
    index = ContextIndex(capacity=20_000)
    index.extend(np.arange(20_000, dtype=np.int32))
    num_bytes = index.token_table.nbytes + index.hash_table.nbytes + index.counters.nbytes
    assert num_bytes / len(index) < 60


@pytest.mark.parametrize("max_matches", [1, 3, 16])
def test_no_more_matches_are_written_than_requested(max_matches: int) -> None:
    text = [0, 1] * 40
    index = ContextIndex()
    index.extend(naive.ints(text))
    rows, _ = own_matches(index, max_matches)
    assert agree(rows, text, naive.matches(text, text, max_matches, own=True), own=True)
    assert len(rows) == max_matches


@pytest.mark.parametrize("num_first", [0, 1, 63, 64, 65, 70, 96, 97, 149])
def test_the_tokens_kept_at_the_bound_depend_on_the_text_alone(num_first: int) -> None:
    text = naive.ints(list(range(150)))
    parts, whole = ContextIndex(max_tokens=64), ContextIndex(max_tokens=64)
    parts.extend(text[:num_first])
    parts.extend(text[num_first:])
    whole.extend(text)
    assert parts.text.tolist() == whole.text.tolist() == list(range(96, 150))
