"""The one-sample test: do a server's samples follow the law that the reference works out?

Samples are walked token by token. At each place the bettors bet on the class of the next token, knowing only
what was heard before (what is learnt is learnt between batches), and are paid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from forerun.audit.sampled.alternatives import ALTERNATIVES, Learner, fixed_bets
from forerun.audit.sampled.betting import wealth
from forerun.audit.sampled.distance import distance_to_law, slack
from forerun.audit.sampled.positions import Position, Positions
from forerun.audit.sampled.prefixes import PrefixCounts
from forerun.errors import UnreadableAnswer, VocabularyMismatch
from forerun.servers.endpoint import END, Token
from forerun.types import FloatArray

if TYPE_CHECKING:
    from forerun.models.reference import Reference

_REMEMBERED: Final = 4096


class AgainstModel:
    """What was bet and counted for one case."""

    alternatives = ALTERNATIVES
    sides = 1

    def __init__(self, places: Positions, read: TokenReader, num_bounded: int) -> None:
        self.logs = np.zeros(len(ALTERNATIVES))
        self.epsilon = 0.0
        self.num_tokens = 0
        self.beginnings = PrefixCounts(num_bounded)
        self._chances: dict[tuple[Token, ...], float] = {}
        self._places = places
        self._read = read
        self._learner = Learner()
        self._remembered: dict[tuple[int, ...], FloatArray] = {}

    def take(self, answers: Sequence[Sequence[Token]], _: Sequence[Sequence[Token]] = ()) -> None:
        """Walk a batch of answers, in the order they were asked for."""
        samples = [self._read(answer) for answer in answers]
        paths = [sample[:depth] for sample in samples for depth in range(len(sample))]
        places = self._places.at(paths)
        bets: dict[tuple[int, ...], FloatArray] = {}
        heard: list[tuple[tuple[int, ...], Position, int]] = []
        for sample in samples:
            for depth, token in enumerate(sample):
                path = sample[:depth]
                place = places[path]
                if path not in bets:
                    bets[path] = np.vstack([self._fixed(path, place), self._learner.bets(path, place)])
                    self.epsilon = max(self.epsilon, place.epsilon)
                outcome = int(place.class_of[token])
                self.logs += bets[path][:, outcome]
                heard.append((path, place, outcome))
            self._count(sample, places)
        for each in heard:
            self._learner.hear(*each)
        self.num_tokens += len(heard)

    def _fixed(self, path: tuple[int, ...], place: Position) -> FloatArray:
        """The bets of those who do not learn, remembered."""
        if len(self._remembered) > _REMEMBERED:
            self._remembered.clear()
        if path not in self._remembered:
            self._remembered[path] = fixed_bets(place)
        return self._remembered[path]

    def _count(self, sample: tuple[int, ...], places: dict[tuple[int, ...], Position]) -> None:
        self.beginnings.hear(sample)
        chance = 1.0
        beginning = sample[: self.beginnings.length]
        for depth, token in enumerate(beginning):
            chance *= float(places[sample[:depth]].p[token])
        self._chances[beginning] = chance

    def log_wealth(self) -> float:
        """What all bettors own together."""
        return wealth(self.logs)

    def bound(self, error_rate: float) -> float:
        """The largest distance of the law of the first so many tokens that is still compatible."""
        seen = distance_to_law(self.beginnings.counts, self._chances)
        return min(1.0, seen + slack(error_rate, self.beginnings.num))

    def compared(self, most: int = 200) -> list[tuple[float, float]]:
        """Expected and seen shares of the commonest beginnings."""
        counts = self.beginnings.counts
        num = max(1, self.beginnings.num)
        return [(self._chances[outcome], count / num) for outcome, count in counts.most_common(most)]


class TokenReader:
    """A server's tokens as the reference's token ids."""

    def __init__(self, model: Reference) -> None:
        self._model = model

    def __call__(self, answer: Sequence[Token]) -> tuple[int, ...]:
        """The token ids of an answer; one that ended has the token that ends it, shown or not."""
        shown = (
            answer[:-1]
            if len(answer) > 1 and answer[-1] == END and answer[-2] in self._model.ends
            else answer
        )
        ids = tuple(token if isinstance(token, int) else self._id_of(token) for token in shown)
        if ids and not (min(ids) >= 0 and max(ids) < self._model.vocab_size):
            raise VocabularyMismatch(
                f"the server says token {max(ids)}, and the reference knows {self._model.vocab_size}: give"
                " the model that the server runs"
            )
        return ids

    def _id_of(self, text: str) -> int:
        ids = sorted(self._model.ends) if text == END else self._model.spelled(text)
        if len(ids) != 1:
            raise UnreadableAnswer(
                f"the server shows the token {text!r} without its id, and the reference has {len(ids)} tokens"
                " that read like this: compare with --baseline instead"
            )
        return ids[0]
