"""Compiled loops, and rows shared out over threads for them.

numba's own threading layers are not safe to enter from several Python threads at once, which a server
does; a thread pool and kernels over row ranges, which release the interpreter, are.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar, cast

import numba
import torch

Function = TypeVar("Function", bound=Callable[..., Any])

_AT_A_TIME = 2
"""Rows a thread takes at a time."""

_ROWS_PER_THREAD = 32
"""Fewer rows than this are not worth waking a thread for."""


def compiled(function: Function) -> Function:
    """Compile a loop once per machine; it runs without the interpreter's lock."""
    return _compile(function, fastmath=False)


def loosely_compiled(*freedoms: str) -> Callable[[Function], Function]:
    """The same, with liberties about floats that a loop needs to be vectorised: LLVM's fast-math flags."""

    return lambda function: _compile(function, fastmath=set(freedoms))


def _compile(function: Function, fastmath: bool | set[str]) -> Function:
    """Compile, and keep the result on disk where a place for it can be written to."""
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return cast("Function", numba.njit(cache=True, **options)(function))
    except RuntimeError:
        return cast("Function", numba.njit(**options)(function))


def inlined(function: Function) -> Function:
    """Compile a function into its callers, leaving the original as it is for every other kind of number."""
    return cast("Function", numba.njit(inline="always")(function))


def over_rows(kernel: Callable[..., None], num_rows: int, *args: Any) -> None:
    """Run kernel(first, last, *args) over all rows, on as many threads as torch uses.

    Threads take a few rows at a time and the caller works too: torch's own threads keep spinning for a
    while after each of its operations, and a thread that has to share its core must not hold up the rest.
    """
    num_threads = min(torch.get_num_threads(), num_rows // _ROWS_PER_THREAD)
    parts = iter(range(0, num_rows, _AT_A_TIME))

    def work() -> None:
        for first in parts:
            kernel(first, min(first + _AT_A_TIME, num_rows), *args)

    others = [_pool(num_threads - 1).submit(work) for _ in range(num_threads - 1)]
    work()
    for other in others:
        if not other.cancel():
            other.result()


@cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    """The pool of this size, made once."""
    return ThreadPoolExecutor(num_threads, thread_name_prefix="forerun-rows")
