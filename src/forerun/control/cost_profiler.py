"""Step costs at the start of an engine: a cached curve that a few measured points confirm, or a new profile.

A curve is kept for later starts only if nobody else used the machine while it was profiled. Otherwise it is
provisional: used, corrected by steps with more weight, and profiled again at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from forerun.control import cost_cache
from forerun.control.cost_sweeps import CostSweeps
from forerun.control.machine_load import CpuSnapshot
from forerun.control.step_cost import StepCost

CHECK_REPEATS: Final = 3
CHECK_SECONDS: Final = 1.0
"""A check sweeps a few row counts CHECK_REPEATS times, or until CHECK_SECONDS have passed, at least once."""

NUM_CHECKS: Final = 2
"""A cached curve is discarded after this many checks in a row that disagree with it."""

MAX_SHAPE_ERROR: Final = 1.35
"""Factor by which the cost ratio of two row counts may differ between the cached curve and a check."""

MAX_STEAL_SHARE: Final = 0.05
MAX_OTHERS_SHARE: Final = 0.1
MAX_SPREAD: Final = 0.25
"""A measurement is disturbed if steal time or the CPU time of other processes exceeds this share of CPU time,
or if the spread of its repeats (`CostSweeps.spread`, a log ratio) exceeds this value.
"""


@dataclass(frozen=True, slots=True)
class CostProfiler:
    """Measures step costs with `measure`, which runs a step with a number of rows and returns its seconds.

    `key` names the curve in the cache. `block_sizes` are those of `profile_sizes`. `progress` is entered
    while a curve is profiled. A confirmed curve is logged at `confirmation_level`. For steps that do not run
    `on_cpu`, only the spread of their repeats counts.
    """

    key: str
    measure: Callable[[int], float]
    max_rows: int
    logger: logging.Logger
    block_sizes: Sequence[int] = ()
    on_cpu: bool = True
    confirmation_level: int = logging.INFO
    progress: Callable[[], AbstractContextManager[None]] = nullcontext
    snapshot: Callable[[], CpuSnapshot] = CpuSnapshot.now

    def load_or_profile(self) -> StepCost:
        """The cached curve if it has the shape of this machine's, else a new profile, written to the cache.

        A disturbed check does not refute a curve: it makes it provisional.
        """
        cached = cost_cache.load(self.key)
        if cached is None or cached.provisional:
            return self.profile()
        path, rows = cost_cache.cache_path(self.key), check_sizes(cached, self.max_rows)
        at_rows = np.searchsorted(cached.rows, rows)
        expected = cached.profiled[at_rows]
        self.measure(1)  # warm-up
        for _ in range(NUM_CHECKS):
            before = self.snapshot()
            sweeps = CostSweeps.measure(self.measure, rows, repeats=CHECK_REPEATS, max_seconds=CHECK_SECONDS)
            disturbance = self._disturbance(before, sweeps.spread)
            ratios = sweeps.minimum / expected
            if ratios.max() <= MAX_SHAPE_ERROR * ratios.min():
                self.logger.log(
                    self.confirmation_level,
                    "Step costs: loaded from %s, checked at %d sizes",
                    path,
                    len(rows),
                )
                return cached
        low, high = sorted((int(ratios.argmin()), int(ratios.argmax())))
        found, kept = (float(curve[high] / curve[low]) for curve in (sweeps.minimum, expected))
        message = (
            f"Step costs: the cached curve in {path} disagrees with this machine"
            f" ({rows[high]} rows cost {found:.2f} times {rows[low]}, cached {kept:.2f} times)"
        )
        if disturbance:
            self.logger.info(
                "%s, but the check was disturbed: %s; used, and profiled again at the next start",
                message,
                disturbance,
            )
            provisional = cached.as_provisional()
            cost_cache.save(self.key, provisional)
            return provisional
        self.logger.info("%s: profiling again", message)
        return self.profile()

    def profile(self, *, time_limited: bool = True) -> StepCost:
        """Profile the curve and write it to the cache, as provisional if the measurement was disturbed."""
        before = self.snapshot()
        with self.progress():
            cost = StepCost.profile(
                self.measure, self.max_rows, block_sizes=self.block_sizes, time_limited=time_limited
            )
        disturbance = self._disturbance(before, cost.spread)
        if disturbance:
            cost = cost.as_provisional()
        path = cost_cache.save(self.key, cost)
        where = f"cached in {path}" if path else "not cached: the cache directory is not writable"
        if disturbance:
            where += f"; provisional, profiled again at the next start: {disturbance}"
        self.logger.info("Step costs: %s; %s", _summary(cost), where)
        return cost

    def _disturbance(self, before: CpuSnapshot, spread: float) -> str:
        """What disturbed the measurement since `before`; empty if nothing did."""
        shares = self.snapshot().shares_since(before)
        if self.on_cpu and shares.steal > MAX_STEAL_SHARE:
            return f"steal time was {shares.steal:.0%} of CPU time"
        if self.on_cpu and shares.others > MAX_OTHERS_SHARE:
            return f"other processes used {shares.others:.0%} of CPU time"
        if spread > MAX_SPREAD:
            return f"repeats of the same step differed by {np.expm1(spread):.0%}"
        return ""


def check_sizes(cost: StepCost, max_rows: int) -> list[int]:
    """Row counts at which a curve is checked: one row, the two sides of the first tile boundary, and the
    widest that fits into CHECK_SECONDS. Curves of different numbers of cores differ most at tile boundaries.
    """
    seconds = {int(num): time for num, time in zip(cost.rows, cost.profiled, strict=True) if num <= max_rows}
    rows = list(seconds)
    boundary = next(((low, high) for low, high in pairwise(rows) if 1 < low == high - 1), ())
    chosen = {rows[0], *(boundary or rows[1:2])}
    left = CHECK_SECONDS / CHECK_REPEATS - sum(seconds[num] for num in chosen)
    widest = next((num for num in reversed(rows) if num not in chosen and seconds[num] <= left), None)
    return sorted(chosen if widest is None else {*chosen, widest})


def _summary(cost: StepCost) -> str:
    """The first, middle and last point of the curve."""
    points = (0, len(cost.rows) // 2, -1)
    return ", ".join(f"{cost.rows[at]:.0f} rows {1e3 * cost.profiled[at]:.1f} ms" for at in points)
