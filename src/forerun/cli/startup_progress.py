"""Progress of one-time work on standard error: loading, compiling kernels, profiling step costs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status


class StartupProgress(logging.Handler):
    """Shows log records of one-time work: those at INFO as lines, those at DEBUG as a spinner's text.

    Without a terminal there is no spinner. The spinner ends with the record at INFO that follows it, so that
    nothing moves while output is printed.
    """

    def __init__(self) -> None:
        from rich.console import Console

        super().__init__()
        self._console = Console(stderr=True, soft_wrap=True)
        self._spinner: Status | None = None
        self._idle: str | None = None
        self._may_spin = True

    @contextmanager
    def spinning(self, text: str) -> Iterator[None]:
        """Show a spinner with this text throughout."""
        self._idle = text
        self._spin(text)
        try:
            yield
        finally:
            self._idle = None
            self._spin(None)

    @contextmanager
    def without_spinner(self) -> Iterator[None]:
        """Show lines only: another display, such as a progress bar, is active."""
        self._may_spin = False
        try:
            yield
        finally:
            self._may_spin = True

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record."""
        from rich.text import Text

        if record.levelno < logging.INFO:
            self._spin(record.getMessage())
            return
        self._spin(self._idle)
        self._console.print(Text(record.getMessage(), style="dim"))

    def _spin(self, text: str | None) -> None:
        if text is None:
            if self._spinner is not None:
                self._spinner.stop()
            self._spinner = None
        elif self._spinner is not None:
            self._spinner.update(text)
        elif self._may_spin and self._console.is_terminal:
            self._spinner = self._console.status(text)
            self._spinner.start()


@contextmanager
def startup_progress(*loggers: logging.Logger) -> Iterator[StartupProgress]:
    """Show what these loggers report, at every level, until the block ends."""
    handler, levels = StartupProgress(), [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
