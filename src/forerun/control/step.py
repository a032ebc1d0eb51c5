"""The record of a step in progress, which planning fills in and accounting reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from forerun.control.candidates import Candidates
from forerun.control.cost_curve import interpolate
from forerun.control.step_cost import StepCost
from forerun.types import BoolArray, IntArray


@dataclass(slots=True)
class Step:
    """A step in progress: its requests, its rows without draft tokens, and the decisions so far.

    Pairs hold the value for sampled requests first, then the value for greedy requests.
    """

    slots: IntArray
    greedy: BoolArray
    adaptive: BoolArray
    baseline_rows: int
    context: int
    is_baseline: bool
    chosen: Candidates = field(default_factory=Candidates.empty)
    draft_seconds: float = 0.0
    lookup_seconds: float = 0.0
    lookups_overlap: bool = False
    lookup_enabled: tuple[bool, bool] | None = None
    expected_accepted: Sequence[Sequence[float]] = ((0.0, 0.0), (0.0, 0.0))
    """Whether lookups overlap with the step before. Per class: whether lookups are enabled; the expected
    accepted tokens among the candidates chosen because they pay, and the number of these candidates.
    """
    num_repeated_rows: int = 0
    """Rows of draft tokens beyond one per token: paths of a draft tree compute the tokens that they share."""
    expected_tokens: float = field(init=False)
    num_greedy: int = field(init=False)

    def __post_init__(self) -> None:
        self.expected_tokens = float(len(self.slots))
        self.num_greedy = int(np.count_nonzero(self.greedy))

    @property
    def has_sampled(self) -> bool:
        """Whether any request of the step samples its tokens."""
        return self.num_greedy < len(self.slots)

    @property
    def num_by_class(self) -> tuple[int, int]:
        """Number of sampled requests, and of greedy ones."""
        return len(self.slots) - self.num_greedy, self.num_greedy

    @property
    def request_flags(self) -> tuple[BoolArray, BoolArray]:
        """Greedy flags and adaptive flags of the requests, as compiled functions take them."""
        return self.greedy, self.adaptive

    @property
    def num_prefill_rows(self) -> int:
        """Rows that belong to prompts."""
        return max(0, self.baseline_rows - len(self.slots))

    @property
    def added_lookup_seconds(self) -> float:
        """Seconds by which lookups prolong the step."""
        return 0.0 if self.lookups_overlap else self.lookup_seconds

    @property
    def num_rows(self) -> int:
        """Rows of the forward pass, draft tokens included."""
        return self.baseline_rows + len(self.chosen) + self.num_repeated_rows

    def predict_seconds(self, cost: StepCost, *rows: int) -> list[float]:
        """Predicted seconds of steps with these numbers of rows, otherwise like this step."""
        curve = cost.curve_at(self.context, sampled=self.has_sampled)
        return [interpolate(cost.rows, curve, float(num)) for num in rows]
