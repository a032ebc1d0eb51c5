"""Who guesses for whom: drafters side by side into one tree, as far as it pays."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from forerun.control.candidates import Candidates, select_drafts, stated
from forerun.control.controller import Controller, Step, warm_up
from forerun.control.step_cost import StepCost
from forerun.drafters.tree_merge import merge, verdict_for
from forerun.engines.guarded_drafter import MAX_PROPOSE_SECONDS, GuardedDrafter
from forerun.engines.local.running_request import RunningRequest
from forerun.errors import ForerunError, InvalidRequest
from forerun.types import Draft, Drafter, RequestView, Verdict

MODEL: Final = "model"
"""The drafter that runs a model of its own."""


class TreeSpeculator:
    """Asks drafters by name and joins what they say; counts their errors and seconds."""

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        usual: Many[str] | None,
        cost: StepCost,
        vocab_size: int,
        *,
        adaptive: bool = True,
    ) -> None:
        self.controller = Controller(cost)
        warm_up()
        self.adaptive = adaptive
        self.usual = tuple(drafters) if usual is None else tuple(usual)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.errors: Counter[str] = Counter()
        self.drafters = {
            name: GuardedDrafter(
                name,
                drafter,
                self,
                vocab_size,
                trees=True,
                too_long=math.inf if name == MODEL else MAX_PROPOSE_SECONDS,  # it may have a prompt to read
            )
            for name, drafter in drafters.items()
        }
        self._parts: dict[str, dict[str, Draft]] = {}
        self._went: defaultdict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        self._dear = {MODEL}  # who takes time for every guess, or draws it: asked only as far as that pays

    def add_seconds(self, drafter: str, seconds: float) -> None:
        """A drafter took so long."""
        self.seconds[drafter] += seconds

    def add_error(self, drafter: str) -> None:
        """A drafter failed."""
        self.errors[drafter] += 1

    def admit(self, sequence: RunningRequest) -> None:
        """A new request."""
        greedy = sequence.request.sampling.greedy
        self.controller.admit(sequence.request.id, greedy=greedy, adaptive=self.adaptive)

    def check_known(self, names: Many[str]) -> None:
        """Raise if a request asks for somebody who is not here."""
        unknown = sorted(set(names) - set(self.drafters))
        if unknown:
            here = ", ".join(self.drafters) or "nobody"
            raise InvalidRequest(f"no drafter here is called {unknown[0]!r}; there is {here}")

    def draft(
        self, sequences: Many[RunningRequest], rooms: Many[int], num_rows: int, context: int
    ) -> tuple[Step, list[Draft]]:
        """A tree for every request, of at most so many nodes; the pass has `num_rows` rows without them, and
        so many tokens of context.
        """
        step = self.controller.begin_step([each.request.id for each in sequences], num_rows, context)
        whose = self.controller.should_draft(step).tolist()
        parts: list[dict[str, Draft]] = [{} for _ in sequences]
        for name, watched in self.drafters.items():
            wanted = [
                room if self._asks(each, name) and (pays or name in self._dear) else 0
                for each, room, pays in zip(sequences, rooms, whose, strict=True)
            ]
            budgets = self._allotted(step, name, sequences, wanted) if name in self._dear else wanted
            mine = [i for i, budget in enumerate(budgets) if budget > 0]
            before = self.seconds[name]
            drafts = watched.propose([sequences[i].view for i in mine], [budgets[i] for i in mine])
            for i, draft in zip(mine, drafts, strict=True):
                parts[i][name] = _estimated(draft)
            if any(draft.sampled.any() for draft in drafts):
                self._dear.add(name)
            if name in self._dear:
                depth = max((draft.depth for draft in drafts), default=0)
                self.controller.record_draft_time(step, ahead(name), depth, self.seconds[name] - before)
            else:
                step.look_seconds += self.seconds[name] - before
        if any(draft.sampled.any() for part in parts for draft in part.values()):
            step.plain = False  # somebody drew for the first time: what was drawn is checked
        self._parts = {each.request.id: part for each, part in zip(sequences, parts, strict=True)}
        trees = [
            merge(list(part.values())).truncate(max(room, 0)) for part, room in zip(parts, rooms, strict=True)
        ]
        return step, self._kept(step, trees)

    def _allotted(
        self, step: Step, name: str, sequences: Many[RunningRequest], rooms: Many[int]
    ) -> list[int]:
        """How many guesses a dear drafter is to make: as deep as that pays, as wide as its trees are."""
        depths = self.controller.draft_lengths(step, ahead(name), np.array(rooms, dtype=np.int64))
        wide = getattr(self.drafters[name].drafter, "branches", 1)
        return [
            min(depth * (wide if each.request.sampling.greedy else 1), room)
            for depth, each, room in zip(depths.tolist(), sequences, rooms, strict=True)
        ]

    def _kept(self, step: Step, trees: Many[Draft]) -> list[Draft]:
        """The guesses that are made."""
        guesses = Candidates.of(trees, partial(self.controller.kind, step))
        return select_drafts(trees, self.controller.choose(step, guesses))

    def survivals(self, step: Step, drafts: Many[Draft]) -> list[tuple[float, ...]]:
        """The calibrated survival probability of every draft token, with which the controller chose it.

        To be called before anything is learnt from the step.
        """
        values = self.controller.estimate_survival(step, step.guesses).tolist() if len(step.guesses) else []
        ends = np.cumsum([len(draft) for draft in drafts]).tolist()
        return [tuple(values[end - len(draft) : end]) for draft, end in zip(drafts, ends, strict=True)]

    def can_block_verify(self, sequence: RunningRequest) -> bool:
        """Whether drawn guesses of this request may be judged as a whole: they must be alone, and that is
        known before any is drawn.
        """
        return sum(len(part) > 0 for part in self._parts.get(sequence.request.id, {}).values()) <= 1

    def _asks(self, sequence: RunningRequest, name: str) -> bool:
        """Whether a request wants this drafter to guess for it."""
        wanted = sequence.request.drafters
        return name in (self.usual if wanted is None else wanted)

    def observe(self, sequence: RunningRequest, draft: Draft, verdict: Verdict) -> None:
        """What became of a request's tree."""
        said = verdict.tokens(draft)
        for name, part in self._parts.pop(sequence.request.id, {}).items():
            own = verdict_for(part, said)
            self.drafters[name].learn(sequence.request.id, part, own)
            if name in self._dear:
                self._went[name][sequence.request.id] = (part.depth, len(own.accepted))

    def close(
        self,
        step: Step,
        names: Many[str],
        drafts: Many[Draft],
        verdicts: Many[Verdict | ForerunError],
        seconds: float,
    ) -> None:
        """A step of these requests is over, and took so long."""
        stood, checked = [], []
        for draft, verdict in zip(drafts, verdicts, strict=True):
            mine = np.zeros(len(draft), dtype=bool)
            if isinstance(verdict, Verdict):
                mine[list(verdict.accepted)] = True
            stood.append(mine)
            checked.append(np.full(len(draft), isinstance(verdict, Verdict)))
        for name, outcomes in self._went.items():
            found = [outcomes.get(each, (0, 0)) for each in names]
            lengths, kept = np.array(found, dtype=np.int64).reshape(-1, 2).T
            self.controller.record_accepted(step, ahead(name), lengths, kept)
        self._went.clear()
        nothing = np.zeros(0, dtype=bool)
        self.controller.record_step(
            step, np.concatenate([nothing, *stood]), seconds, np.concatenate([nothing, *checked])
        )

    def forget(self, view: RequestView) -> None:
        """A request is over; whoever guessed for it sees the end of its text first."""
        self._parts.pop(view.id, None)
        self.controller.forget(view.id)
        for watched in self.drafters.values():
            watched.forget(view.id, view)


def ahead(name: str) -> str:
    """The kind of guess that is asked about before it is made."""
    return f"{name}, ahead"


def _estimated(draft: Draft) -> Draft:
    """A draft of chosen guesses with an estimate for each."""
    if draft.evidence is not None or draft.sampled.any():
        return draft
    survivals = np.minimum.accumulate(stated(draft)).astype(np.float32)
    return replace(draft, evidence=survivals[:, None])
