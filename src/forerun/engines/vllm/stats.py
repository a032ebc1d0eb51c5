"""Statistics of speculative decoding, by drafter and by depth in the draft."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby, product
from typing import Final

import numpy as np

from forerun.control.accounting import Goodput
from forerun.control.cost_curve import interpolate
from forerun.control.step_cost import StepCost
from forerun.drafters.tree_merge import sources_of
from forerun.engines.vllm.metric_names import (
    ACCEPTED_TOKENS,
    BASELINE_GOODPUT,
    DRAFT_LENGTH,
    DRAFT_SECONDS,
    DRAFT_TOKENS,
    DRAFTER_ERRORS,
    MEASURED_GOODPUT,
    PREDICTED_GOODPUT,
    REQUEST_STEPS,
    STEP_SECONDS,
    TOKENS,
    TRACKED_REQUESTS,
    UNDRAFTED_STEPS,
)
from forerun.engines.vllm.shared_counters import Series, Values, create_counters
from forerun.types import ROOT, BoolArray, Draft

logger = logging.getLogger("vllm.forerun")  # a child of vLLM's logger, so that it inherits its settings

ROWS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128, 192, 256)
"""Numbers of rows whose step cost is exported: common ones, and those that start another tile."""

EMA_WEIGHT: Final = 0.05
"""Weight of a step in a moving average."""

BY_DRAFTER: Final = (
    DRAFT_SECONDS,
    DRAFTER_ERRORS,
    DRAFT_LENGTH,
    PREDICTED_GOODPUT,
    MEASURED_GOODPUT,
    BASELINE_GOODPUT,
)
"""Metrics with one value per drafter."""


class SpecDecodeStats:
    """Counters and gauges of a scheduler whose drafts have at most `max_draft_tokens` tokens."""

    def __init__(self, drafters: Sequence[str], max_draft_tokens: int) -> None:
        self.drafters = tuple(drafters)
        depths = [str(depth) for depth in range(1, max_draft_tokens + 1)]
        by_depth = (DRAFT_TOKENS, ACCEPTED_TOKENS)
        self.series: list[Series] = [
            *((name, ()) for name in (REQUEST_STEPS, UNDRAFTED_STEPS, TOKENS, TRACKED_REQUESTS)),
            *((STEP_SECONDS, _cost_labels(rows, sampled)) for rows, sampled in product(ROWS, (False, True))),
            *((name, (("drafter", drafter),)) for name, drafter in product(BY_DRAFTER, self.drafters)),
            *(
                (name, (("drafter", drafter), ("depth", depth)))
                for name, drafter, depth in product(by_depth, self.drafters, depths)
            ),
        ]
        self.values: Values = np.zeros(len(self.series))
        self._index = {each: index for index, each in enumerate(self.series)}
        self._first_depth = {
            (name, drafter): self._index[name, (("drafter", drafter), ("depth", "1"))]
            for name, drafter in product(by_depth, self.drafters if max_draft_tokens else ())
        }
        self._steps = self._index[REQUEST_STEPS, ()]
        self._undrafted = self._index[UNDRAFTED_STEPS, ()]
        self._tokens = self._index[TOKENS, ()]

    def publish(self, instance: str, engine: int) -> None:
        """Move the values to shared memory, as those of `engine`; logs a warning where that fails."""
        before = self.values
        try:
            self.values = create_counters(instance, engine, self.series)
        except OSError as error:
            logger.warning("Metrics of forerun are not published: %s", error)
        else:
            self.values += before

    def record_request_step(self, sources: Sequence[str], num_tokens: int) -> None:
        """Record that a request verified draft tokens of these sources and generated `num_tokens`.

        A token that several drafters proposed counts for each of them.
        """
        self.values[self._steps] += 1
        self.values[self._tokens] += num_tokens
        if not sources:
            self.values[self._undrafted] += 1
            return
        start = 0
        for source, group in groupby(sources):
            end = start + len(list(group))
            end_accepted = max(start, min(end, num_tokens - 1))
            for drafter in sources_of(source):
                drafted = self._first_depth[DRAFT_TOKENS, drafter]
                accepted = self._first_depth[ACCEPTED_TOKENS, drafter]
                self.values[drafted + start : drafted + end] += 1
                self.values[accepted + start : accepted + end_accepted] += 1
            start = end

    def record_tree(self, draft: Draft, nodes: BoolArray, accepted: Sequence[int], num_tokens: int) -> None:
        """Record that a request verified these nodes of a draft tree and generated `num_tokens`."""
        self.values[self._steps] += 1
        self.values[self._tokens] += num_tokens
        depths: list[int] = []
        for source, parent, is_verified in zip(
            draft.source, draft.parents.tolist(), nodes.tolist(), strict=True
        ):
            depths.append(0 if parent == ROOT else depths[parent] + 1)
            for drafter in sources_of(source) if is_verified else ():
                self.values[self._first_depth[DRAFT_TOKENS, drafter] + depths[-1]] += 1
        for node in accepted:
            for drafter in sources_of(draft.source[node]):
                self.values[self._first_depth[ACCEPTED_TOKENS, drafter] + depths[node]] += 1

    def record_undrafted_steps(self, num_requests: int) -> None:
        """Record a step in which this many requests generated a token each, without draft tokens."""
        for index in (self._steps, self._undrafted, self._tokens):
            self.values[index] += num_requests

    def add_seconds(self, drafter: str, seconds: float) -> None:
        """Add drafting time."""
        self._add(DRAFT_SECONDS, seconds, drafter)

    def add_error(self, drafter: str) -> None:
        """Count an error of a drafter."""
        self._add(DRAFTER_ERRORS, 1, drafter)

    def record_goodput(self, drafter: str, draft_length: float, goodput: Goodput | None) -> None:
        """Update the moving averages of a drafter with one step; `goodput` is None if it drafted nothing."""
        values = {DRAFT_LENGTH: draft_length}
        if goodput is not None:
            values[PREDICTED_GOODPUT] = goodput.predicted
            values[MEASURED_GOODPUT] = goodput.measured
            values[BASELINE_GOODPUT] = goodput.baseline
        for name, value in values.items():
            index = self._index[name, (("drafter", drafter),)]
            before = self.values[index]
            self.values[index] = before + (EMA_WEIGHT if before else 1.0) * (value - before)

    def set_tracked_requests(self, num_requests: int) -> None:
        """Set the number of requests with live speculation state."""
        self.values[self._index[TRACKED_REQUESTS, ()]] = num_requests

    def set_step_costs(self, cost: StepCost) -> None:
        """Export the step-cost curves; the one with sampling stays 0 until such a step was measured."""
        for sampled in (False, True):
            curve = cost.curve(sampled=sampled)
            if curve is not None:
                for rows in ROWS:
                    seconds = interpolate(cost.rows, curve, float(rows))
                    self.values[self._index[STEP_SECONDS, _cost_labels(rows, sampled)]] = seconds

    def total(self, name: str, drafter: str | None = None) -> float:
        """The sum of a metric over depths, and over drafters unless one is given."""
        return float(
            sum(
                value
                for (each, labels), value in zip(self.series, self.values.tolist(), strict=True)
                if each == name and (drafter is None or ("drafter", drafter) in labels)
            )
        )

    def _add(self, name: str, amount: float, drafter: str) -> None:
        self.values[self._index[name, (("drafter", drafter),)]] += amount


def _cost_labels(rows: int, sampled: bool) -> tuple[tuple[str, str], ...]:
    return ("rows", str(rows)), ("sampled", "yes" if sampled else "no")


class PeriodicStatsLogger:
    """Summarizes what was recorded since the last line, once per interval."""

    def __init__(self, stats: SpecDecodeStats, now: float, every: float = 60.0) -> None:
        self.stats = stats
        self.every = every
        self._started_at = now
        self._before = stats.values.copy()

    def next_line(self, now: float) -> str | None:
        """The line to log; None before the interval is over, or if it had no steps."""
        if now - self._started_at < self.every:
            return None
        since = SpecDecodeStats(self.stats.drafters, 0)
        since.series, since.values = self.stats.series, self.stats.values - self._before
        self._started_at, self._before = now, self.stats.values.copy()
        return summarize(since) if since.total(REQUEST_STEPS) else None


def summarize(stats: SpecDecodeStats) -> str:
    """One line: tokens per step, share of undrafted steps, acceptance rate and errors of each drafter."""
    steps = stats.total(REQUEST_STEPS)
    parts = [
        f"{stats.total(TOKENS) / steps:.2f} tokens per step",
        f"{stats.total(UNDRAFTED_STEPS) / steps:.0%} of steps without draft",
    ]
    for drafter in stats.drafters:
        drafted, accepted = stats.total(DRAFT_TOKENS, drafter), stats.total(ACCEPTED_TOKENS, drafter)
        if drafted:
            rate = accepted / drafted
            parts.append(f"{drafter}: {accepted:.0f} of {drafted:.0f} draft tokens accepted ({rate:.0%})")
        if errors := stats.total(DRAFTER_ERRORS, drafter):
            parts.append(f"{drafter}: {errors:.0f} errors")
    return "Speculative decoding: " + ", ".join(parts)
