"""A sequential test whether draft tokens pay, by measured times and accepted tokens alone."""

from __future__ import annotations

from math import sqrt
from typing import Final

LOSS_DECAY: Final = 0.995
"""Decay per step of the sums that the test compares."""

MIN_STEPS: Final = 2.5
"""Effective number of steps before drafting may be suspended."""

MAX_LOSS: Final = 0.01
"""Loss that is not worth a suspension, as a share of the time of all steps. Exploration may cost half of it.
"""

MIN_Z: Final = 2.0
SMALL_SAMPLE_Z: Final = 6.0
"""Standard errors by which the loss must exceed zero after n steps: MIN_Z + SMALL_SAMPLE_Z / n."""

MAX_LOSS_SHARE: Final = 0.005
"""Share of all time that drafting may lose before suspensions."""

MAX_SUSPENSION: Final = 2048
"""Steps of the longest suspension: what was measured long ago says little about the requests of today."""

SUSPENDED_LOOKUP_INTERVAL: Final = 8
"""Steps between two lookups during a suspension, which keep the estimates current."""


MATCH_DECAY: Final = 0.95
"""Decay per lookup of the counts of first draft tokens that the output had."""

MIN_MATCH_LOOKUPS: Final = 8.0
CHANGE_Z: Final = 2.5
"""Lookups during a suspension, and standard errors by which their matches must exceed those before it, to end
the suspension.
"""


class DraftingGuard:
    """Suspends drafting for a class of requests while it costs more time than it saves.

    The test compares decayed sums of saved and spent time with their standard error. It uses no estimate of
    acceptance or cost: whatever the estimates promise, a measured loss ends drafting. A suspension lasts
    until the time lost before it is at most `MAX_LOSS_SHARE` of all time, then drafting is tried again. It
    ends earlier if the text has changed: lookups go on, and the output shows whether it has their first
    tokens, which needs no verification.
    """

    __slots__ = (
        "_baseline",
        "_drafted",
        "_loss",
        "_matches",
        "_matches_before",
        "_num_steps",
        "_remaining",
        "_squares",
    )

    def __init__(self) -> None:
        self._remaining = 0
        self._matches = self._matches_before = (0.0, 0.0)  # first draft tokens, and those in the output
        self._reset()

    def _reset(self) -> None:
        self._loss = self._squares = self._num_steps = 0.0
        self._baseline = self._drafted = 0.0  # seconds of all steps, and of those with draft tokens

    @property
    def is_suspended(self) -> bool:
        """Whether requests of the class should get no draft tokens."""
        return self._remaining > 0

    @property
    def should_look_up(self) -> bool:
        """Whether to look up draft tokens for requests of the class in this step."""
        return self._remaining % SUSPENDED_LOOKUP_INTERVAL == 0

    @property
    def num_steps_without_lookup(self) -> int:
        """Number of steps before `should_look_up` again."""
        return self._remaining % SUSPENDED_LOOKUP_INTERVAL

    def record(self, saved: float, cost: float, baseline: float, baseline_error: float = 0.0) -> None:
        """Record a step: the seconds that draft tokens of the class saved and cost, 0 without any.

        `baseline` are the seconds of the class's share of the same step without draft tokens,
        `baseline_error` the relative standard error with which that time is known.
        """
        if self._remaining:
            self._remaining -= 1
            return
        loss = cost - saved
        self._num_steps = LOSS_DECAY * self._num_steps + 1
        self._loss = LOSS_DECAY * self._loss + loss
        self._squares = LOSS_DECAY * self._squares + loss**2
        self._baseline = LOSS_DECAY * self._baseline + baseline
        self._drafted = LOSS_DECAY * self._drafted + (baseline if cost else 0.0)
        if self._is_losing(baseline_error):
            num_lost = self._loss * self._num_steps / self._baseline
            self._remaining = int(min(num_lost / MAX_LOSS_SHARE, MAX_SUSPENSION))
            self._matches_before, self._matches = self._matches, (0.0, 0.0)
            self._reset()

    def record_matches(self, num_lookups: int, num_matches: int) -> None:
        """Record a step in which draft tokens were looked up for `num_lookups` requests of the class.

        The output of `num_matches` of them has the first one, whether it was verified or not.
        """
        lookups, matches = self._matches
        self._matches = MATCH_DECAY * lookups + num_lookups, MATCH_DECAY * matches + num_matches
        if self._remaining and self._matches_more():
            self._remaining = 0

    def _matches_more(self) -> bool:
        """Whether first draft tokens match significantly more often than before the suspension."""
        (before, matched_before), (since, matched) = self._matches_before, self._matches
        if since < MIN_MATCH_LOOKUPS or not before:
            return False
        pooled = (matched_before + matched) / (before + since)
        error = sqrt(pooled * (1 - pooled) * (1 / before + 1 / since))
        return matched / since - matched_before / before > CHANGE_Z * error

    def _is_losing(self, baseline_error: float) -> bool:
        if self._num_steps < MIN_STEPS or self._loss <= MAX_LOSS * self._baseline:
            return False
        spread = self._squares - self._loss**2 / self._num_steps
        error = sqrt(max(spread, 0.0) + (baseline_error * self._drafted) ** 2)
        return self._loss > (MIN_Z + SMALL_SAMPLE_Z / self._num_steps) * error
