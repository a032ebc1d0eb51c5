"""Faulty drafters, for a server that must tolerate them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from forerun.types import Draft, Proposal, RequestView, Verdict

FAULTS = ("Raising", "OutOfRange", "TooMany", "WrongLengths", "NanQ")

SLOW_SECONDS = 1.5
"""Above the limit of `GuardedDrafter` for one call."""


class Faulty:
    """Proposes invalid drafts after the warm-up."""

    num_warm_up = 4  # calls while the server starts

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        if self.num_warm_up:
            self.num_warm_up -= 1
            return [Draft.chain([]) for _ in views]
        drafts: list[Draft] = self.wrong(views, budgets)
        return drafts

    def wrong(self, views: Sequence[RequestView], budgets: Sequence[int]) -> Any:
        raise NotImplementedError

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:
        pass

    def forget(self, id: str) -> None:
        pass


class Raising(Faulty):
    def wrong(self, views: Sequence[RequestView], budgets: Sequence[int]) -> Any:
        raise RuntimeError("faulty drafter")


class OutOfRange(Faulty):
    def wrong(self, views: Sequence[RequestView], budgets: Sequence[int]) -> Any:
        return [Draft.chain([10**6, -5]) for _ in views]


class TooMany(Faulty):
    def wrong(self, views: Sequence[RequestView], budgets: Sequence[int]) -> Any:
        return [Draft.chain([1] * (budget + 50)) for budget in budgets]


class WrongLengths(Faulty):
    def wrong(self, views: Sequence[RequestView], budgets: Sequence[int]) -> Any:
        return [Draft.chain([1])] * (len(views) + 1)


class NanQ(Faulty):
    def wrong(self, views: Sequence[RequestView], budgets: Sequence[int]) -> Any:
        q = Proposal(np.full(49152, np.nan))
        return [Draft.chain([1][:budget], q=[q][:budget]) for budget in budgets]


class Slow(Faulty):
    """Exceeds the time limit in every call."""

    def wrong(self, views: Sequence[RequestView], budgets: Sequence[int]) -> Any:
        time.sleep(SLOW_SECONDS)
        return [Draft.chain([]) for _ in views]
