"""Compiled loops. This module knows nothing of torch, so that guessing does not have to load it."""

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
    """Compile a loop once per machine; it runs without the interpreter's lock."""
    return _compile(function, fastmath=False)


def loosely_compiled(*freedoms: str) -> Callable[[Function], Function]:
    """The same, with liberties about floats that a loop needs to be vectorised: LLVM's fast-math flags."""

    return lambda function: _compile(function, fastmath=set(freedoms))


def _compile(function: Function, fastmath: bool | set[str]) -> Function:
    """Compile, and keep the result on disk where a place for it can be written to.

    A compiled loop holds the loops and constants it uses from other files as they were. numba looks only at
    the function's own file to see whether the result is still good; here every file of ours counts.
    """
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        dispatcher = numba.njit(cache=True, **options)(function)
        kept = dispatcher._cache._cache_file
        kept._source_stamp = (kept._source_stamp, _stamp())
    except (RuntimeError, AttributeError):  # nowhere to write, or a numba that keeps results another way
        dispatcher = numba.njit(**options)(function)
    return cast("Function", dispatcher)


@cache
def _stamp() -> tuple[tuple[str, int, int], ...]:
    """Which files of ours there are, how long and how old."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


@contextmanager
def on_compile(notify: Callable[[str], None]) -> Iterator[None]:
    """Call `notify` with the name of each function that numba starts to compile.

    Functions loaded from the cache on disk are not compiled and not reported. Nested calls are: a function is
    reported before those that it uses.
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
        """Nothing: the next function's start is reported."""


def inlined(function: Function) -> Function:
    """Compile a function into its callers, leaving the original as it is for every other kind of number."""
    return cast("Function", numba.njit(inline="always")(function))
