from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numba.core import caching

from forerun.core import jit as jit_module
from forerun.core.jit import compiled, on_compile
from forerun.core.row_threads import over_rows


def test_compilation_works_without_a_writable_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])

    @compiled
    def double(x: float) -> float:
        return 2 * x

    assert double(21.0) == 42.0


def test_each_compilation_is_reported_once() -> None:
    @compiled
    def double(x: float) -> float:
        return 2 * x

    names: list[str] = []
    with on_compile(names.append):
        double(21.0)
        double(22.0)
    assert [name.rpartition(".")[2] for name in names] == ["double"]
    double(1)  # a new signature, compiled while nothing listens
    assert len(names) == 1


def test_a_loop_loaded_from_the_cache_is_not_reported(tmp_path: Path) -> None:
    script = tmp_path / "loops.py"
    script.write_text(
        "from forerun.core.jit import compiled, on_compile\n\n"
        "@compiled\ndef double(x):\n    return 2 * x\n\n"
        "with on_compile(print):\n    double(21.0)\n"
    )
    first, second = (
        subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    )
    assert [len(first), len(second)] == [1, 0]


def test_a_change_in_any_source_file_invalidates_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(x: float) -> float:
        return 2 * x

    stamps = []
    for change in (0, 0, 1):
        monkeypatch.setattr(jit_module, "_stamp", lambda change=change: ("forerun", change))
        stamps.append(cast("Any", compiled(double))._cache._cache_file._source_stamp)
    assert stamps[0] == stamps[1] != stamps[2]


@pytest.mark.parametrize("num_rows", [0, 1, 2, 31, 64, 65, 1000])
def test_every_row_is_processed_once(num_rows: int) -> None:
    times = np.zeros(num_rows, dtype=np.int64)

    def kernel(first: int, last: int, counts: Any) -> None:
        counts[first:last] += 1

    over_rows(kernel, num_rows, times)
    assert (times == 1).all()


def test_concurrent_callers_do_not_interfere() -> None:
    results = [np.zeros(500, dtype=np.int64) for _ in range(8)]

    def kernel(first: int, last: int, counts: Any) -> None:
        counts[first:last] += 1

    threads = [threading.Thread(target=over_rows, args=(kernel, 500, counts)) for counts in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((counts == 1).all() for counts in results)


def test_an_error_on_another_thread_is_raised() -> None:
    def kernel(first: int, last: int) -> None:
        if first >= 400:
            raise ValueError("row 400")

    with pytest.raises(ValueError, match="row 400"):
        over_rows(kernel, 1000)
