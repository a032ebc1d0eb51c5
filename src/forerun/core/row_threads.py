"""Rows shared out over threads.

numba's own threading layers are not safe to enter from several Python threads at once, which a server
does; a thread pool and kernels over row ranges, which release the interpreter, are.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from forerun.core.tensors import torch

_AT_A_TIME = 2
"""Rows a thread takes at a time."""

_ROWS_PER_THREAD = 32
"""Fewer rows than this are not worth waking a thread for."""


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
