"""A time limit on how long a stopped server waits for its clients.

vLLM stops the engine first. If that happens before the engine has reported its requests as aborted, their
streams get no end: uvicorn then waits for the clients to close them, without a time limit, and vLLM handles
no second signal.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Final

CLOSE_SECONDS: Final = 5
"""Seconds that open connections may last after a stop signal. The engine has stopped by then."""


def bound_shutdown() -> None:
    """Make uvicorn servers created from now on close connections `CLOSE_SECONDS` after a stop signal."""
    import uvicorn  # noqa: PLC0415 (comes with vLLM)

    stock: Any = uvicorn.Config.__init__
    if hasattr(stock, "__wrapped__"):
        return

    @wraps(stock)
    def init(self: Any, *args: Any, timeout_graceful_shutdown: int | None = None, **kwargs: Any) -> None:
        seconds = CLOSE_SECONDS if timeout_graceful_shutdown is None else timeout_graceful_shutdown
        stock(self, *args, timeout_graceful_shutdown=seconds, **kwargs)

    uvicorn.Config.__init__ = init  # type: ignore[method-assign]
