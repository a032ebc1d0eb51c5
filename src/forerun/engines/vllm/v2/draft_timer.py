"""Times a draft model without waiting for the device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from forerun.engines.vllm.step_report import DraftTime


class DraftTimer:
    """Times proposals by CUDA events, which are read once the device has passed them, or by the clock."""

    def __init__(self, device: torch.device) -> None:
        self._uses_events = device.type == "cuda"
        self._pending: deque[tuple[int, Any, Any]] = deque()
        self._done: DraftTime | None = None

    @contextmanager
    def time(self, num_passes: int) -> Iterator[None]:
        """Time the proposal that runs within this block."""
        start = self._mark()
        yield
        self._pending.append((num_passes, start, self._mark()))

    def take(self) -> DraftTime | None:
        """The latest proposal whose time is known, once."""
        while self._pending and self._is_past(self._pending[0][2]):
            num_passes, start, end = self._pending.popleft()
            self._done = DraftTime(num_passes, self._seconds(start, end))
        report, self._done = self._done, None
        return report

    def _mark(self) -> Any:
        if not self._uses_events:
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _is_past(self, mark: Any) -> bool:
        return not self._uses_events or bool(mark.query())

    def _seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end) / 1e3 if self._uses_events else end - start)
