from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.matches import BREAK
from forerun.drafters.output_store import OutputStore
from unit.drafters import naive

additions = st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(1, 40)), max_size=60)


def texts(store: OutputStore, salt: str | None) -> list[int]:
    return [int(token) for index in store.indexes(salt) for token in index.text if token != BREAK]


@given(additions, st.integers(8, 120))
def test_it_holds_no_more_than_its_capacity_in_tokens(
    added: list[tuple[str | None, int]], capacity: int
) -> None:
    store = OutputStore(capacity)
    for number, (salt, length) in enumerate(added):
        store.add(salt, np.full(length, number, dtype=np.int32))
        held = sum(len(index) for s in (None, "a", "b", "c") for index in store._generations.get(s, []))
        assert len(store) == held <= capacity
        assert number in texts(store, salt), "the newest output is always stored"


@given(additions)
def test_a_salt_holds_only_its_own_outputs(added: list[tuple[str | None, int]]) -> None:
    store = OutputStore(200)
    stored: dict[str | None, set[int]] = {}
    for number, (salt, length) in enumerate(added):
        store.add(salt, np.full(length, number, dtype=np.int32))
        stored.setdefault(salt, set()).add(number)
    for salt in (None, "a", "b", "c"):
        assert set(texts(store, salt)) <= stored.get(salt, set())


def test_the_least_recently_used_salt_is_evicted_first() -> None:
    store = OutputStore(256)
    for number, salt in enumerate("abc"):
        store.add(salt, naive.ints([number] * 80))
    assert store.indexes("a")
    store.add("d", naive.ints([3] * 80))
    assert not store.indexes("b")
    assert texts(store, "a") == [0] * 80


def test_an_output_longer_than_half_the_store_keeps_its_end() -> None:
    store = OutputStore(20)
    store.add(None, naive.ints(list(range(50))))
    assert texts(store, None) == list(range(41, 50))


def test_an_empty_output_is_not_stored() -> None:
    store = OutputStore(20)
    store.add(None, naive.ints([]))
    assert texts(store, None) == []
    assert len(store) == 0


def test_the_number_of_salts_is_bounded() -> None:
    store = OutputStore(6400)
    for number in range(1000):
        store.add(f"salt-{number}", naive.ints([number]))
    assert sum(bool(store.indexes(f"salt-{number}")) for number in range(1000)) == 100
    assert store.indexes("salt-999")
