"""A forward pass on the clock, as models record it and traces store it."""

from __future__ import annotations

from typing import NamedTuple


class ModelCall(NamedTuple):
    """A forward pass: its begin and its end in seconds on one clock, and its rows.

    Models use `time.perf_counter`, traces the time since their begin.
    """

    began: float
    ended: float
    num_rows: int
