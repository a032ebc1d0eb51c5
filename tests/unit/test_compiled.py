from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import pytest
from numba.core import caching

from forerun.core import compiled as compiled_module
from forerun.core.compiled import compiled
from forerun.core.threads import over_rows


def test_a_machine_without_a_place_to_write_compiles_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])

    @compiled
    def double(x: float) -> float:
        return 2 * x

    assert double(21.0) == 42.0


def test_a_change_in_any_file_of_ours_makes_kept_results_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(x: float) -> float:
        return 2 * x

    stamps = []
    for change in (0, 0, 1):
        monkeypatch.setattr(compiled_module, "_stamp", lambda change=change: ("forerun", change))
        stamps.append(cast("Any", compiled(double))._cache._cache_file._source_stamp)
    assert stamps[0] == stamps[1] != stamps[2]


@pytest.mark.parametrize("num_rows", [0, 1, 2, 31, 64, 65, 1000])
def test_every_row_is_worked_on_once(num_rows: int) -> None:
    times = np.zeros(num_rows, dtype=np.int64)

    def kernel(first: int, last: int, counts: Any) -> None:
        counts[first:last] += 1

    over_rows(kernel, num_rows, times)
    assert (times == 1).all()


def test_callers_on_several_threads_do_not_meet() -> None:
    results = [np.zeros(500, dtype=np.int64) for _ in range(8)]

    def kernel(first: int, last: int, counts: Any) -> None:
        counts[first:last] += 1

    threads = [threading.Thread(target=over_rows, args=(kernel, 500, counts)) for counts in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((counts == 1).all() for counts in results)


def test_an_error_on_another_thread_is_not_lost() -> None:
    def kernel(first: int, last: int) -> None:
        if first >= 400:
            raise ValueError("row 400")

    with pytest.raises(ValueError, match="row 400"):
        over_rows(kernel, 1000)
