"""Row-parallel execution of compiled kernels.

numba's threading layers are not safe to enter from several Python threads at once, which a server does. A
thread pool that runs GIL-free kernels over row ranges is.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from forerun.core.tensors import torch

_ROWS_PER_TASK = 2
"""Rows that a thread processes per task."""

_MIN_ROWS_PER_THREAD = 32
"""A thread is started only if it would get at least this many rows, unless the caller knows better."""


def over_rows(
    kernel: Callable[..., None],
    num_rows: int,
    *args: Any,
    min_rows_per_thread: int = _MIN_ROWS_PER_THREAD,
) -> None:
    """Run kernel(first, last, *args) over all rows, on as many threads as torch uses.

    Threads take small tasks and the caller works too: torch's own threads keep spinning briefly after each
    operation, and a thread that shares its core must not delay the others.
    """
    num_threads = min(torch.get_num_threads(), num_rows // min_rows_per_thread)
    if num_threads < 2:
        kernel(0, num_rows, *args)
        return
    tasks = iter(range(0, num_rows, _ROWS_PER_TASK))

    def work() -> None:
        for first in tasks:
            kernel(first, min(first + _ROWS_PER_TASK, num_rows), *args)

    others = [_pool(num_threads - 1).submit(work) for _ in range(num_threads - 1)]
    work()
    for other in others:
        if not other.cancel():
            other.result()


@cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    """The thread pool of this size, created once."""
    return ThreadPoolExecutor(num_threads, thread_name_prefix="forerun-rows")
