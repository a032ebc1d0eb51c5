"""Concurrent requests with responses in request order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Request = TypeVar("Request")
Reply = TypeVar("Reply")


def map_concurrent(
    send: Callable[[Request], Reply], requests: Iterable[Request], concurrency: int
) -> Iterator[Reply]:
    """Send all requests, `concurrency` of them in flight. An error drops the requests not yet sent.

    An interrupt does not wait for responses in flight: the caller closes the connections.
    """
    pool = ThreadPoolExecutor(concurrency)
    wait = True
    try:
        yield from pool.map(send, requests)
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        pool.shutdown(wait=wait, cancel_futures=True)
