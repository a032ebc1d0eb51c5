"""Counts host synchronizations of verification on CUDA, for `forerun selftest`.

Switched on by the environment variable FORERUN_SYNC_DEBUG=1. Verification then runs under torch's sync debug
mode, which warns of operations of torch that wait for the device: `.item()`, `.tolist()`, `nonzero`, copies
to pageable memory. It does not cover waits on CUDA events, nor calls that bypass torch. The worker logs the
counts in one line, which `read_sync_counts` reads back. Without the variable or without CUDA nothing happens.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

VARIABLE: Final = "FORERUN_SYNC_DEBUG"

MAX_LOGGED_PLACES: Final = 8
"""Source lines of synchronizations that are logged, each once."""

_COUNTS: Final = "sync debug: %d synchronizations in %d verifications, detector %s"
_READ_COUNTS: Final = re.compile(
    r"^(?:.*?pid=(?P<process>\d+))?.*?sync debug: (?P<num>\d+) synchronizations in"
    r" (?P<verifications>\d+) verifications, detector (?P<state>active|inactive)",
    flags=re.MULTILINE,
)
_PLACE: Final = "sync debug: host synchronization at %s"
_READ_PLACE: Final = re.compile(r"sync debug: host synchronization at (\S+:\d+)")
_MESSAGE: Final = "synchronizing CUDA operation"

logger = logging.getLogger("vllm.forerun")


@dataclass(frozen=True, slots=True)
class SyncCounts:
    """Host synchronizations in a number of verifications, and the source lines that caused them.

    The detector is active if it noticed a synchronization that was made on purpose.
    """

    num_synchronizations: int
    num_verifications: int
    is_active: bool
    places: tuple[str, ...] = ()


def count_synchronizations() -> AbstractContextManager[None]:
    """A context for one verification; does nothing unless the variable is set and CUDA is available."""
    counter = _shared_counter()
    return nullcontext() if counter is None else counter.watch()


@cache
def _shared_counter() -> SyncCounter | None:
    if os.environ.get(VARIABLE, "0") in ("", "0") or not torch.cuda.is_available():
        return None
    return SyncCounter(torch.cuda, lambda: torch.ones(1, device="cuda").item())


class SyncCounter:
    """Counts the synchronizations of watched blocks, and logs the counts.

    `synchronize` waits for the device on purpose: the counter runs it once, to see whether the detector
    notices it.
    """

    def __init__(self, cuda: Any, synchronize: Callable[[], object]) -> None:
        self._cuda = cuda
        self._num_verifications = 0
        self._places: dict[str, int] = {}
        with self._detect() as noticed:
            synchronize()
        self._is_active = bool(noticed)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count the synchronizations of this block."""
        with self._detect() as noticed:
            yield
        self._num_verifications += 1
        for place in noticed:
            if place not in self._places and len(self._places) < MAX_LOGGED_PLACES:
                logger.warning(_PLACE, place)
            self._places[place] = self._places.get(place, 0) + 1
        if noticed or self._num_verifications.bit_count() == 1:  # powers of two: few lines, also in long runs
            self._log()

    def _log(self) -> None:
        num = sum(self._places.values())
        logger.info(_COUNTS, num, self._num_verifications, "active" if self._is_active else "inactive")

    @contextmanager
    def _detect(self) -> Iterator[list[str]]:
        """Yields a list, filled at the end of the block: the source lines of its synchronizations."""
        places: list[str] = []
        before = self._cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._cuda.set_sync_debug_mode("warn")
            try:
                yield places
            finally:
                self._cuda.set_sync_debug_mode(before)
        for each in caught:
            if _MESSAGE in str(each.message):
                places.append(f"{os.path.basename(each.filename)}:{each.lineno}")
            else:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def read_sync_counts(log: str) -> SyncCounts | None:
    """The counts in the log of a server, over all of its workers; None if there are none."""
    by_worker = {
        match["process"]: SyncCounts(
            int(match["num"]), int(match["verifications"]), match["state"] == "active"
        )
        for match in _READ_COUNTS.finditer(log)
    }
    if not by_worker:
        return None
    return SyncCounts(
        sum(each.num_synchronizations for each in by_worker.values()),
        sum(each.num_verifications for each in by_worker.values()),
        all(each.is_active for each in by_worker.values()),
        tuple(dict.fromkeys(_READ_PLACE.findall(log))),
    )
