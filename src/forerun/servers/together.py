"""Many requests at once, answers in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Request = TypeVar("Request")
Reply = TypeVar("Reply")


def ask_together(
    ask: Callable[[Request], Reply], requests: Iterable[Request], at_once: int
) -> Iterator[Reply]:
    """Ask for everything, so many at a time; whoever stops listening is not asked for the rest."""
    with ThreadPoolExecutor(at_once) as pool:
        try:
            yield from pool.map(ask, requests)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
