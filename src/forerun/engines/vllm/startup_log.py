"""Log lines of the parts of a start that take seconds: compiling kernels, profiling step costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

from forerun.core.jit import on_compile
from forerun.engines.vllm.stats import logger

EVERY: Final = 5.0
"""Seconds between two lines about the same part of a start."""


@contextmanager
def log_progress(
    what: str, note: str, progress: Callable[[], str] = str, *, every: float = EVERY
) -> Iterator[None]:
    """Log that `what` begins, a line every few seconds with its `progress`, and how long it took.

    A thread writes the lines in between, so that they come while compiled code runs. Nothing is logged at
    the end if the block raises: its caller reports that.
    """
    logger.info("%s: %s", what, note)
    began = time.perf_counter()
    done = Event()

    def watch() -> None:
        while not done.wait(every):
            logger.info("%s: %.0f s so far%s", what, time.perf_counter() - began, progress())

    thread = Thread(target=watch, name="forerun-startup-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    logger.info("%s: done in %.1f s", what, time.perf_counter() - began)


@contextmanager
def log_compilation() -> Iterator[None]:
    """Log that kernels are loaded or compiled in this block, with the number of functions compiled so far."""
    compiled: list[str] = []
    note = "loading; the first start after an installation or an update compiles them, in about 30 s"
    with (
        on_compile(compiled.append),
        log_progress("drafter and controller kernels", note, lambda: f", {len(compiled)} functions compiled"),
    ):
        yield
