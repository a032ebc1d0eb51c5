"""One replica: a continuous-batching engine on paper. Its passes take what a curve says, and guesses stand by
chance; who decides how far to guess is the same as in the engines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import numpy as np

from forerun.simulate.policies import Policy
from forerun.simulate.traffic import SimulatedRequest
from forerun.types import FloatArray, IntArray

Curve = Callable[[FloatArray, float], FloatArray]
"""Seconds of passes: by their rows, over so many tokens of context."""

CHUNK: Final = 2048
"""Rows of prompts that a pass reads at most."""

TINY: Final = 1e-9
"""No chance is nearer to 0 or 1."""

NOISE: Final = 0.03
"""How much the time of one pass differs from the next, as a logarithm."""


@dataclass(slots=True)
class ActiveRequest:
    """A request in a replica: what is left of it, and when its tokens came."""

    visit: SimulatedRequest
    name: str
    unread: int
    left: int
    context: int
    chance: float
    other: float
    stretch: tuple[float, float]
    first: float = 0.0


@dataclass(slots=True)
class SimulatedStep:
    """One pass: how long it took, for how many that decode, what they said, and how many guesses they had."""

    seconds: float = 0.0
    decoding: int = 0
    said: int = 0
    guesses: int = 0


@dataclass(slots=True)
class ReplicaStats:
    """What came out: tokens, those of them that were decoded, passes; and of requests that are done the
    seconds to the first token and between two.
    """

    tokens: int = 0
    said: int = 0
    passes: int = 0
    decoding: int = 0
    guesses: int = 0
    busy: float = 0.0
    to_first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)


class Replica:
    """Runs one pass after the other: `begin` decides and says how long it takes, `end` says what it said."""

    def __init__(
        self,
        curve: Curve,
        policy: Policy,
        random: np.random.Generator,
        *,
        max_batch: int,
        room: float = np.inf,
    ) -> None:
        self.curve = curve
        self.policy = policy
        self.random = random
        self.max_batch = max_batch
        self.room = room
        self.waiting: deque[SimulatedRequest] = deque()
        self.stays: list[ActiveRequest] = []
        self.tally = ReplicaStats()
        self._names = count()
        self._reading: dict[int, int] = {}
        self._decoding: list[int] = []
        self._stood: IntArray = np.zeros(0, dtype=np.int64)
        self.last = SimulatedStep()

    @property
    def num_unfinished(self) -> int:
        """Requests that are here."""
        return len(self.waiting) + len(self.stays)

    def begin(self) -> float:
        """Admit whoever fits, decide how far to guess, and run; returns how long that takes."""
        self._admit()
        self._reading, left = {}, CHUNK
        for place, stay in enumerate(self.stays):
            if stay.unread and left:
                self._reading[place] = min(stay.unread, left)
                left -= self._reading[place]
        self._decoding = [place for place, stay in enumerate(self.stays) if not stay.unread]
        rows = len(self._decoding) + sum(self._reading.values())
        context = sum(stay.context for stay in self.stays)
        names = [self.stays[place].name for place in self._decoding]
        lengths = self.policy.lengths(names, rows, context)
        chances = np.array([self.stays[place].chance for place in self._decoding])
        chances = np.clip(chances, TINY, 1 - TINY)
        run = np.log(self.random.random(len(chances))) / np.log(chances)
        self._stood = np.minimum(run, lengths).astype(np.int64)
        num_rows = float(rows + lengths.sum())
        noise = np.exp(NOISE * self.random.standard_normal())
        seconds = float(self.curve(np.array([num_rows]), context)[0] * noise)
        self.last = SimulatedStep(seconds, len(names), 0, int(lengths.sum()))
        self.tally.passes += 1
        self.tally.decoding += len(names)
        self.tally.guesses += self.last.guesses
        self.tally.busy += seconds
        return seconds

    def end(self, now: float) -> None:
        """The pass is over: everybody moves on by what was said."""
        self.policy.observe(self._stood, self.last.seconds)
        for place, num in self._reading.items():
            stay = self.stays[place]
            stay.unread -= num
            stay.context += num
            if not stay.unread:
                stay.first = now
                stay.left -= 1
                self.tally.tokens += 1
        for place, stood in zip(self._decoding, self._stood.tolist(), strict=True):
            stay = self.stays[place]
            said = min(stood + 1, stay.left)
            stay.left -= said
            stay.context += said
            self.tally.tokens += said
            self.tally.said += said
            self.last.said += said
            if stay.other >= 0 and self.random.random() < said / stay.stretch[0]:
                stay.chance, stay.other, stay.stretch = stay.other, stay.chance, stay.stretch[::-1]
        self._retire(now)

    def _admit(self) -> None:
        held = sum(stay.context + stay.unread + stay.left for stay in self.stays)
        while self.waiting and len(self.stays) < self.max_batch:
            visit = self.waiting[0]
            held += visit.prompt + visit.output
            if held > self.room and self.stays:
                break
            self.waiting.popleft()
            name = str(next(self._names))
            self.policy.admit(name)
            self.stays.append(
                ActiveRequest(
                    visit, name, visit.prompt, visit.output, 0, visit.chance, visit.other, visit.stretch
                )
            )

    def _retire(self, now: float) -> None:
        over = [stay for stay in self.stays if not stay.unread and stay.left <= 0]
        if not over:
            return
        self.stays = [stay for stay in self.stays if stay.unread or stay.left > 0]
        for stay in over:
            self.policy.forget(stay.name)
            self.tally.to_first.append(stay.first - stay.visit.arrival)
            self.tally.between.append((now - stay.first) / max(stay.visit.output - 1, 1))
