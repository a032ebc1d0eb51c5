"""Who guesses for whom: drafters side by side into one tree, as far as it pays."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Final

import numpy as np

from forerun.control.budget import spend
from forerun.control.cost import StepCost
from forerun.control.pace import Pace
from forerun.control.trust import Trust
from forerun.drafters.together import merge, retrace
from forerun.drafters.tree import SURVIVAL
from forerun.engines.local.sequence import Sequence
from forerun.engines.watched import TOO_LONG, Watched
from forerun.errors import InvalidRequest
from forerun.types import Draft, Drafter, RequestView, Verdict

ASSUMED: Final = 0.7
"""The chance of a guess of which its drafter says nothing; how it does is learnt from there."""

MODEL: Final = "model"
"""The drafter that costs time of its own, so that it is asked only as far as that pays."""


class Guesser:
    """Asks drafters by name and joins what they say; counts their errors and seconds."""

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        usual: Many[str] | None,
        cost: StepCost,
        vocab_size: int,
        max_draft: int,
    ) -> None:
        self.cost = cost
        self.max_draft = max_draft
        self.usual = tuple(drafters) if usual is None else tuple(usual)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.errors: Counter[str] = Counter()
        self.drafters = {
            name: Watched(
                name,
                drafter,
                self,
                vocab_size,
                trees=True,
                too_long=math.inf if name == MODEL else TOO_LONG,  # it may have a prompt to read
            )
            for name, drafter in drafters.items()
        }
        self._trust = {greedy: Trust() for greedy in (True, False)}
        self._pace = Pace(max_draft) if MODEL in drafters and max_draft else None
        self._parts: dict[str, dict[str, Draft]] = {}
        self._drawn, self._before = 0, 0.0

    def spent(self, drafter: str, seconds: float) -> None:
        """A drafter took so long."""
        self.seconds[drafter] += seconds

    def error(self, drafter: str) -> None:
        """A drafter failed."""
        self.errors[drafter] += 1

    def trust(self, *, greedy: bool) -> Trust:
        """What a new request believes: what earlier ones of its kind learnt."""
        return Trust(self._trust[greedy])

    def demand_known(self, names: Many[str]) -> None:
        """Raise if a request asks for somebody who is not here."""
        unknown = sorted(set(names) - set(self.drafters))
        if unknown:
            here = ", ".join(self.drafters) or "nobody"
            raise InvalidRequest(f"no drafter here is called {unknown[0]!r}; there is {here}")

    def guess(self, sequences: Many[Sequence], rooms: Many[int], num_rows: int) -> list[Draft]:
        """A tree for every request, of at most so many nodes; the pass has `num_rows` rows without them."""
        parts: list[dict[str, Draft]] = [{} for _ in sequences]
        for name, watched in self.drafters.items():
            mine = [i for i, each in enumerate(sequences) if rooms[i] > 0 and self._asks(each, name)]
            budgets = [min(rooms[i], self._most(name, sequences[i])) for i in mine]
            drafts = watched.propose([sequences[i].view for i in mine], budgets)
            for i, draft in zip(mine, drafts, strict=True):
                parts[i][name] = _estimated(draft)
        self._drawn = max((part[MODEL].depth for part in parts if MODEL in part), default=0)
        self._parts = {each.request.id: part for each, part in zip(sequences, parts, strict=True)}
        trees = [
            merge(list(part.values())).first(max(room, 0)) for part, room in zip(parts, rooms, strict=True)
        ]
        return spend(trees, [each.trust.factor for each in sequences], self.cost, num_rows)

    def jointly(self, sequence: Sequence) -> bool:
        """Whether drawn guesses of this request may be judged as a whole: they must be alone, and that is
        known before any is drawn.
        """
        return sum(len(part) > 0 for part in self._parts.get(sequence.request.id, {}).values()) <= 1

    def _asks(self, sequence: Sequence, name: str) -> bool:
        """Whether a request wants this drafter to guess for it."""
        wanted = sequence.request.drafters
        return name in (self.usual if wanted is None else wanted)

    def _most(self, name: str, sequence: Sequence) -> int:
        """How far a drafter may guess: a draft model as far as its passes pay."""
        if name != MODEL or self._pace is None:
            return self.max_draft
        wide = getattr(self.drafters[MODEL].drafter, "branches", 1) if sequence.request.sampling.greedy else 1
        return self._pace.how_far() * wide

    def hear(self, sequence: Sequence, draft: Draft, verdict: Verdict) -> None:
        """What became of a request's tree. Whether drawn guesses stand says nothing about estimates."""
        if draft.evidence is not None:
            expected = float(draft.evidence[~draft.sampled, SURVIVAL].sum())
            sequence.trust.heard(expected, sum(not draft.sampled[node] for node in verdict.accepted))
        said = verdict.tokens(draft)
        for name, part in self._parts.pop(sequence.request.id, {}).items():
            own = retrace(part, said)
            self.drafters[name].learn(sequence.request.id, part, own)
            if name == MODEL and self._pace is not None and len(part):
                self._pace.heard(len(part), len(own.accepted))

    def timed(self, step_seconds: float) -> None:
        """A step took so long, the draft model's part in it included."""
        if self._pace is not None:
            self._pace.timed(self._drawn, self.seconds[MODEL] - self._before, step_seconds)
            self._before = self.seconds[MODEL]

    def forget(self, view: RequestView) -> None:
        """A request is over; whoever guessed for it sees the end of its text first."""
        self._parts.pop(view.id, None)
        for watched in self.drafters.values():
            watched.forget(view.id, view)


def _estimated(draft: Draft) -> Draft:
    """A draft of chosen guesses with an estimate for each: by its depth, where its drafter has none."""
    if draft.evidence is not None or draft.sampled.any():
        return draft
    survival = np.array([ASSUMED ** len(draft.path(node)) for node in range(len(draft))], dtype=np.float32)
    return replace(draft, evidence=np.minimum.accumulate(survival)[:, None])
