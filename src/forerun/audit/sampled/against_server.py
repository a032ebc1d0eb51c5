"""The two-sample test: do two servers' samples follow one law? No model is needed, and no tokenizer.

Samples of the two are paired where they stand at the same place, and bettors bet on how the next token of
the one differs from that of the other. A token is looked at only when it has been paired: a sample goes on
to its next place after its pair has been paid, so nobody bets on what has been seen.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from forerun.audit.sampled.betting import SHARES, staked, wealth
from forerun.audit.sampled.distance import distance_of_counts, slack_of_two
from forerun.audit.sampled.prefixes import PrefixCounts
from forerun.servers.endpoint import Token, looked_up

Path: TypeAlias = tuple[Token, ...]
Witness: TypeAlias = Callable[["_Place", Token], float]
"""A number from 0 to 1 for a token: high where the second server is suspected to say it more often."""


class _Place:
    """What both servers were heard to say at a place."""

    __slots__ = ("copies", "likeliest", "plain", "said", "tested")

    def __init__(self, said: Path, copies: frozenset[Token]) -> None:
        self.said = frozenset(said)
        self.copies = copies
        self.plain: Counter[Token] = Counter()
        self.tested: Counter[Token] = Counter()
        self.likeliest: Token | None = None

    def hear(self, tested: Token, plain: Token) -> None:
        self.tested[tested] += 1
        self.plain[plain] += 1
        if self.likeliest is None or self.plain[plain] > self.plain[self.likeliest]:
            self.likeliest = plain


def _learnt(place: _Place, token: Token) -> float:
    more = place.tested[token] - place.plain[token]
    return 0.5 if more == 0 else float(more > 0)


WITNESSES: dict[str, Witness] = {
    "another law at single places": _learnt,
    "guesses kept too often": lambda place, token: float(token in place.copies),
    "guesses kept too seldom": lambda place, token: float(token not in place.copies),
    "tokens that plain decoding does not say": lambda place, token: float(place.plain[token] == 0),
    "the likeliest token too often": lambda place, token: float(token == place.likeliest),
    "what was just said too often": lambda place, token: float(token in place.said),
}


class AgainstServer:
    """What was bet and counted for one case."""

    alternatives = tuple(name for name in WITNESSES for _ in SHARES)
    sides = 2

    def __init__(self, prompt: Sequence[Token], epsilon: float, num_bounded: int) -> None:
        self.logs = np.zeros(len(self.alternatives))
        self.epsilon = epsilon
        self.num_tokens = 0
        self.beginnings = PrefixCounts(num_bounded)
        self._plain = PrefixCounts(num_bounded)
        self._prompt = tuple(prompt)
        self._places: dict[Path, _Place] = {}
        self._waiting: dict[Path, tuple[deque[Path], deque[Path]]] = defaultdict(lambda: (deque(), deque()))

    def take(self, answers: Sequence[Path], plain: Sequence[Path]) -> None:
        """Pair batches of answers of the two servers, in the order they were asked for."""
        for tested, other in zip(answers, plain, strict=True):
            self.beginnings.hear(tested)
            self._plain.hear(other)
            self._waiting[()][0].append(tested)
            self._waiting[()][1].append(other)
            self._pair([()])

    def _pair(self, open_places: list[Path]) -> None:
        """Pair whoever waits at these places, then at those they go on to."""
        while open_places:
            path = open_places.pop()
            tested, plain = self._waiting[path]
            while tested and plain:
                pair = tested.popleft(), plain.popleft()
                depth = len(path)
                self._bet(path, pair[0][depth], pair[1][depth])
                for side, sample in enumerate(pair):
                    if len(sample) > depth + 1:
                        self._waiting[sample[: depth + 1]][side].append(sample)
                        open_places.append(sample[: depth + 1])

    def _bet(self, path: Path, tested: Token, plain: Token) -> None:
        place = self._places.get(path)
        if place is None:
            place = self._places[path] = _Place(path, looked_up((*self._prompt, *path)))
        differences = np.array(
            [witness(place, tested) - witness(place, plain) for witness in WITNESSES.values()]
        )
        self.logs += staked(1.0 + (differences - self.epsilon) / (1.0 + self.epsilon))
        place.hear(tested, plain)
        self.num_tokens += 1

    def log_wealth(self) -> float:
        """What all bettors own together."""
        return wealth(self.logs)

    def bound(self, error_rate: float) -> float:
        """The largest distance of the two laws of the first so many tokens that is still compatible."""
        one, other = self.beginnings, self._plain
        seen = distance_of_counts(one.counts, other.counts)
        return min(1.0, seen + slack_of_two(error_rate, one.num, other.num))

    def compared(self, most: int = 200) -> list[tuple[float, float]]:
        """The two servers' shares of the commonest beginnings."""
        plain, tested = self._plain.counts, self.beginnings.counts
        num = max(1, self.beginnings.num)
        return [
            (plain[outcome] / num, tested[outcome] / num) for outcome, _ in (plain + tested).most_common(most)
        ]
