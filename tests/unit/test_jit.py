from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
import pytest
from numba.core import caching

from forerun.core.jit import NUMBA_PRIVATE_NAMES, compiled, on_compile, stamp_by_content
from forerun.core.row_threads import over_rows


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of these tests are compiled in each run."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))


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


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a kernel, the functions that it calls and the constants that they use."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python compares its own cache by mtime and size
    monkeypatch.syspath_prepend(tmp_path)
    directory = tmp_path / "kernels"
    directory.mkdir()
    sources = {
        "__init__": "",
        "constants": "import numpy as np\nSCALE = 3\nSTEPS = (1, 2)\nTABLE = np.array([5, 6])\nUNUSED = 1\n",
        "callees": """
            from forerun.core.jit import compiled, compiled_with_fastmath, inlined
            from kernels.constants import SCALE, STEPS
            @compiled
            def scale(x, by=SCALE):
                return by * x
            @inlined
            def shift(x):
                return x + STEPS[1]
            def unrelated(x):
                return x + 100
        """,
        "kernel": """
            from forerun.core.jit import compiled
            from kernels import callees, constants
            from kernels.callees import shift
            @compiled
            def kernel(x):
                return shift(callees.scale(x)) + constants.TABLE[0] + later(x)
            @compiled
            def later(x):
                return x
        """,
    }
    for name, source in sources.items():
        (directory / f"{name}.py").write_text(textwrap.dedent(source))
    return directory


def _run_kernel() -> tuple[int, set[str]]:
    """The kernel's result after a new import of the package, and the functions compiled for it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "kernels"]:
        del sys.modules[name]
    names: list[str] = []
    with on_compile(names.append):
        result = importlib.import_module("kernels.kernel").kernel(10)
    return result, {name.rpartition(".")[2] for name in names}


@pytest.mark.parametrize(
    ("file", "old", "new", "result", "recompiled"),
    [
        ("constants", "SCALE = 3", "SCALE = 4", 57, {"kernel", "scale"}),
        ("constants", "(1, 2)", "(1, 3)", 48, {"kernel"}),
        ("constants", "[5, 6]", "[7, 6]", 49, {"kernel"}),
        ("callees", "by * x", "by - x", 10, {"kernel", "scale"}),
        ("callees", "x + STEPS[1]", "x - STEPS[1]", 43, {"kernel"}),
        ("callees", "@compiled\n", "@compiled_with_fastmath('nnan')\n", 47, {"kernel", "scale"}),
        ("kernel", "return x\n", "return 2 * x\n", 57, {"kernel", "later"}),
        ("constants", "UNUSED = 1", "UNUSED = 2", 47, set()),
        ("callees", "x + 100", "x + 200", 47, set()),
        ("kernel", "return x\n", "return x  # a comment\n", 47, set()),
    ],
)
def test_a_kernel_is_recompiled_if_and_only_if_its_dependencies_change(
    package: Path, file: str, old: str, new: str, result: int, recompiled: set[str]
) -> None:
    assert _run_kernel() == (47, {"kernel", "scale", "later"})
    assert _run_kernel() == (47, set())
    edited = package / f"{file}.py"
    assert edited.read_text().count(old) == 1
    edited.write_text(edited.read_text().replace(old, new))
    assert _run_kernel() == (result, recompiled)
    assert _run_kernel() == (result, set())


def test_a_new_modification_time_does_not_recompile(package: Path) -> None:
    _run_kernel()
    for file in package.glob("*.py"):
        os.utime(file, (0, 0))
    assert _run_kernel() == (47, set())


def test_a_dependency_that_cannot_be_compared_is_refused(package: Path) -> None:
    """numba compiles a named tuple's constructor by its fields, which the stamp does not cover."""
    (package / "pairs.py").write_text("from typing import NamedTuple\nclass Pair(NamedTuple):\n    x: int\n")
    (package / "kernel.py").write_text(
        "from forerun.core.jit import compiled\n"
        "from kernels.pairs import Pair\n"
        "@compiled\ndef kernel(x):\n    return Pair(x).x\n"
    )
    with pytest.raises(TypeError, match=r"kernel: Pair"):
        _run_kernel()


@pytest.mark.parametrize("depth", range(len(NUMBA_PRIVATE_NAMES)))
def test_a_private_attribute_that_numba_has_renamed_is_an_error(depth: int) -> None:
    dispatcher = owner = cast("Any", compiled(lambda x: x))
    for name in NUMBA_PRIVATE_NAMES[:depth]:
        owner = getattr(owner, name)
    delattr(owner, NUMBA_PRIVATE_NAMES[depth])
    with pytest.raises(AttributeError, match=rf"numba .*{NUMBA_PRIVATE_NAMES[depth]}"):
        stamp_by_content(dispatcher)


def test_kernels_run_as_python_without_compilation() -> None:
    script = "from forerun.core.jit import compiled; print(compiled(lambda x: 2 * x)(21))"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    assert run.stdout.split() == [b"42"]


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


@pytest.mark.parametrize("num_threads", [1, 4])
def test_an_error_on_any_thread_is_raised(monkeypatch: pytest.MonkeyPatch, num_threads: int) -> None:
    monkeypatch.setattr("forerun.core.row_threads.torch.get_num_threads", lambda: num_threads)

    def kernel(first: int, last: int) -> None:
        if last > 400:
            raise ValueError("row 400")

    with pytest.raises(ValueError, match="row 400"):
        over_rows(kernel, 1000)
