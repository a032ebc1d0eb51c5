"""How far a draft model guesses, fixed before it draws: theorem 3.8 with what was measured.

The chance alpha that a guess stands comes from earlier rounds, and c, what a guess costs, from earlier steps.
Nothing here looks at a token.
"""

from __future__ import annotations

from typing import Final

from forerun.core.theory import best_gamma, expected_accepted

FORGET: Final = 0.98
"""What a round counts for after the next one: some fifty rounds are remembered."""


class Pace:
    """Counts rounds, takes times, and says how many guesses pay best; at least one, or nothing is learnt."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept, self._tried = 3.0, 5.0
        self._cost: float | None = None

    @property
    def alpha(self) -> float:
        """The chance that a guess stands."""
        return self._kept / self._tried

    @property
    def cost(self) -> float:
        """What a guess costs, as a share of a step of the target; a tenth until it was measured."""
        return 0.1 if self._cost is None else self._cost

    def heard(self, num_checked: int, num_kept: int) -> None:
        """Of so many guesses so many stood: one more was tried than stood, unless all did."""
        self._kept = FORGET * self._kept + num_kept
        self._tried = FORGET * self._tried + min(num_kept + 1, num_checked)

    def timed(self, num_guesses: int, draft_seconds: float, step_seconds: float) -> None:
        """So many guesses took so long, in a step that took so long with them."""
        target = step_seconds - draft_seconds
        if num_guesses and target > 0:
            cost = draft_seconds / num_guesses / target
            self._cost = cost if self._cost is None else FORGET * self._cost + (1 - FORGET) * cost

    def how_far(self) -> int:
        """How many guesses to draw next."""
        return max(1, best_gamma(min(self.alpha, 0.99), self.cost, self.most))

    def expected(self, num_guesses: int) -> float:
        """How many of so many guesses will stand."""
        return expected_accepted(self.alpha, num_guesses)
