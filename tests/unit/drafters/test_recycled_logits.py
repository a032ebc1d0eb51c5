from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters import recycled_logits
from forerun.drafters.recycled_logits import (
    NO_ROW,
    RecycledLogits,
    RecycledStore,
    find_pair,
    find_token,
    store_rows,
)
from forerun.drafters.successors import CODED_PROBS, NUM_SUCCESSORS, encode
from forerun.types import TopTokens
from unit.drafters import naive

contexts = st.lists(st.tuples(st.integers(-1, 6), st.integers(0, 6)), max_size=60)


def add(table: RecycledLogits, context: tuple[int, int], mark: int) -> None:
    """Store a row that is recognized by its successors."""
    tokens = np.full((1, NUM_SUCCESSORS), mark, dtype=np.int32)
    probs = np.full((1, NUM_SUCCESSORS), 0.125, dtype=np.float32)
    table.add(TopTokens(np.array([context], dtype=np.int32), tokens, probs))


def mark_at(table: RecycledLogits, row: int) -> int | None:
    return None if row == NO_ROW else int(table.arrays[1][row, 0])


@given(contexts)
def test_the_latest_row_of_a_context_is_found(given_contexts: list[tuple[int, int]]) -> None:
    table = RecycledLogits(256)
    by_pair: dict[tuple[int, int], int] = {}
    by_token: dict[int, int] = {}
    for mark, context in enumerate(given_contexts):
        add(table, context, mark)
        by_pair[context] = by_token[context[1]] = mark
    for previous in range(-1, 8):
        for last in range(8):
            found = mark_at(table, find_pair(table.arrays, previous, last))
            assert found == by_pair.get((previous, last))
    for last in range(8):
        assert mark_at(table, find_token(table.arrays, last)) == by_token.get(last)
    assert len(table) == len(by_pair)


@given(contexts, st.integers(1, 8))
def test_a_full_table_drops_rows_and_returns_no_row_but_the_latest_of_a_context(
    given_contexts: list[tuple[int, int]], max_rows: int
) -> None:
    table = RecycledLogits(max_rows)
    latest: dict[tuple[int, int], int] = {}
    for mark, context in enumerate(given_contexts):
        add(table, context, mark)
        latest[context] = mark
        for previous in range(-1, 8):
            for last in range(8):
                found = mark_at(table, find_pair(table.arrays, previous, last))
                assert found in {None, latest.get((previous, last))}
        for last in range(8):
            row = find_token(table.arrays, last)
            assert row == NO_ROW or table.arrays[0][row, 1] == last
        assert len(table) <= max_rows
    if given_contexts:
        assert mark_at(table, find_pair(table.arrays, *given_contexts[-1])) == len(given_contexts) - 1


def num_pairs_indexed(table: RecycledLogits) -> int:
    return int((table.arrays[3][0] > 0).sum())


def test_a_reused_row_leaves_the_index() -> None:
    rows = np.stack([np.arange(200), np.arange(200)], axis=1).astype(np.int32)
    successors = np.zeros((200, NUM_SUCCESSORS), dtype=np.int32)
    probs = np.zeros((200, NUM_SUCCESSORS), dtype=np.float32)
    table = RecycledLogits(64)
    store_rows(table.arrays, rows, successors, probs)
    assert num_pairs_indexed(table) <= len(table) == 64

    def keep(*_: object) -> None:
        pass

    table = RecycledLogits(64)
    naive.sabotaged(store_rows, _remove=keep)(table.arrays, rows, successors, probs)
    assert num_pairs_indexed(table) > len(table), "the check can fail"


def test_memory_is_bounded() -> None:
    table = RecycledLogits()
    num_bytes = table.num_bytes
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = rng.integers(0, 50_000, (1000, 2)).astype(np.int32)
        successors = rng.integers(0, 50_000, (1000, NUM_SUCCESSORS)).astype(np.int32)
        table.add(TopTokens(rows, successors, np.full((1000, NUM_SUCCESSORS), 0.125, dtype=np.float32)))
    assert table.num_bytes == num_bytes < 600_000
    assert len(table) == recycled_logits.MAX_ROWS
    found = [find_pair(table.arrays, *row) != NO_ROW for row in rows.tolist()]
    assert np.mean(found) > 0.99, "nearly all recent contexts are kept"


def test_requests_share_a_table_only_within_a_salt_and_only_if_outputs_are_shared() -> None:
    shared = RecycledStore(shared=True, max_salts=2)
    assert shared.of("a") is shared.of("a")
    assert shared.of("a") is not shared.of("b")
    assert shared.of(None) is not shared.of("b")
    first = shared.of("a")
    assert shared.of("a") is first
    shared.of("c")
    shared.of("d")
    assert shared.of("a") is not first, "the least recently used salt is evicted"
    alone = RecycledStore(shared=False)
    assert alone.of("a") is not alone.of("a")


def test_codes_keep_probabilities_within_five_percent() -> None:
    probs = np.geomspace(1e-9, 1.0, 1000).astype(np.float32)
    coded = CODED_PROBS[[encode(prob) for prob in probs.tolist()]]
    assert (np.abs(coded / probs - 1) < 0.05).all()
    assert encode(0.0) == encode(float("nan")) == 255


def test_rows_of_a_small_vocabulary_are_filled() -> None:
    table = RecycledLogits(4)
    probs = np.array([[0.5, 0.3, 0.2]], dtype=np.float32)
    table.add(TopTokens(np.array([[1, 2]], dtype=np.int32), np.array([[2, 0, 1]], dtype=np.int32), probs))
    _, successors, codes, _, _ = table.arrays
    assert successors[0].tolist() == [2, 0, 1, 1, 1, 1, 1, 1]
    assert (codes[0, 3:] == 255).all()
