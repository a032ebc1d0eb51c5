"""Logs the compilation of kernels at a first run: start and end at INFO, progress at DEBUG."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from forerun.core.jit import on_compile

logger: Final = logging.getLogger(__name__)


@contextmanager
def log_compilation() -> Iterator[None]:
    """Log the kernels of forerun that are compiled in this block; where all are cached nothing is logged."""
    names: list[str] = []

    def notify(name: str) -> None:
        if not name.startswith("forerun."):
            return
        if not names:
            logger.info("compiling kernels for this machine; later runs load them from numba's cache")
        names.append(name)
        logger.debug("compiling kernel %d: %s", len(names), name.removeprefix("forerun."))

    with on_compile(notify):
        yield
    if names:
        logger.info("compiled %d kernel%s", len(names), "" if len(names) == 1 else "s")
