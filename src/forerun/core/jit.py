"""numba compilation with an on-disk cache; does not import torch, so that drafting does not load it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import event

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a loop once per machine; it runs without the GIL."""
    return _compile(function, fastmath=False)


def compiled_with_fastmath(*flags: str) -> Callable[[Function], Function]:
    """Like `compiled`, with LLVM fast-math flags that allow vectorisation."""

    return lambda function: _compile(function, fastmath=set(flags))


def _compile(function: Function, fastmath: bool | set[str]) -> Function:
    """Compile, and cache the result on disk if the cache directory is writable.

    A compiled loop embeds the loops and constants that it uses from other files. numba validates its cache by
    the modification time of the function's own file; the stamp set here covers every file of this package.
    """
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        dispatcher = numba.njit(cache=True, **options)(function)
        cache_file = dispatcher._cache._cache_file
        cache_file._source_stamp = (cache_file._source_stamp, _stamp())
    except (RuntimeError, AttributeError):  # no writable cache directory, or another cache layout
        dispatcher = numba.njit(**options)(function)
    return cast("Function", dispatcher)


@cache
def _stamp() -> tuple[tuple[str, int, int], ...]:
    """Name, size and modification time of every source file of this package."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


@contextmanager
def on_compile(notify: Callable[[str], None]) -> Iterator[None]:
    """Call `notify` with the name of each function that numba starts to compile.

    Functions loaded from the on-disk cache are not reported. A function is reported before the functions that
    it calls.
    """
    with event.install_listener("numba:compile", _CompileListener(notify)):
        yield


class _CompileListener(event.Listener):  # type: ignore[misc]  # numba has no types
    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify

    def on_start(self, event: event.Event) -> None:
        function = event.data["dispatcher"].py_func
        self._notify(f"{function.__module__}.{function.__qualname__}")

    def on_end(self, event: event.Event) -> None:
        """Ignored; only the start of a compilation is reported."""


def inlined(function: Function) -> Function:
    """Compile a function into its compiled callers; the original still accepts any number type."""
    return cast("Function", numba.njit(inline="always")(function))
