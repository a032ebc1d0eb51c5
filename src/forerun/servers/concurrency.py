"""Many requests at once, answers in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Request = TypeVar("Request")
Reply = TypeVar("Reply")


def map_concurrent(
    ask: Callable[[Request], Reply], requests: Iterable[Request], at_once: int
) -> Iterator[Reply]:
    """Ask for everything, `at_once` requests at a time. Requests not yet sent are dropped at an error.

    An interrupt does not wait for the answers under way: the caller closes the connections.
    """
    pool = ThreadPoolExecutor(at_once)
    wait = True
    try:
        yield from pool.map(ask, requests)
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        pool.shutdown(wait=wait, cancel_futures=True)
