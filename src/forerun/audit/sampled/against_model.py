"""The one-sample test: whether a server's samples follow the distribution that the reference model computes.

Samples are processed token by token. At each position the bettors bet on the class of the next token. Learned
alternatives are updated between batches, so that bets depend on earlier samples only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from forerun.audit.sampled.alternatives import ALTERNATIVES, LearnedAlternatives, fixed_bets
from forerun.audit.sampled.betting import log_mean_wealth
from forerun.audit.sampled.distance import distance_to_distribution, slack
from forerun.audit.sampled.positions import Position, Positions
from forerun.audit.sampled.prefixes import MAX_REPORTED, PrefixCounts
from forerun.errors import UnreadableAnswer, VocabularyMismatch
from forerun.servers.completions import END, Token
from forerun.types import FloatArray

if TYPE_CHECKING:
    from forerun.models.reference import Reference

_MAX_CACHED_BETS: Final = 4096


class AgainstModel:
    """The bets and the prefix counts of one case."""

    alternatives = ALTERNATIVES

    def __init__(self, positions: Positions, read: TokenReader, num_bounded_tokens: int) -> None:
        self.log_wealths = np.zeros(len(ALTERNATIVES))
        self.epsilon = 0.0
        self.num_tokens = 0
        self.prefixes = PrefixCounts(num_bounded_tokens)
        self._probabilities: dict[tuple[Token, ...], float] = {}
        self._positions = positions
        self._read = read
        self._learned = LearnedAlternatives()
        self._cached_bets: dict[tuple[int, ...], FloatArray] = {}

    def update(self, samples: Sequence[Sequence[Token]], _: Sequence[Sequence[Token]] = ()) -> None:
        """Bet on a batch of samples, in the order of their requests."""
        read = [self._read(sample) for sample in samples]
        paths = [sample[:depth] for sample in read for depth in range(len(sample))]
        positions = self._positions.at(paths)
        bets: dict[tuple[int, ...], FloatArray] = {}
        observed: list[tuple[tuple[int, ...], Position, int]] = []
        for sample in read:
            for depth, token in enumerate(sample):
                path = sample[:depth]
                position = positions[path]
                if path not in bets:
                    bets[path] = np.vstack([self._fixed(path, position), self._learned.bets(path, position)])
                    self.epsilon = max(self.epsilon, position.epsilon)
                outcome = int(position.class_of[token])
                self.log_wealths += bets[path][:, outcome]
                observed.append((path, position, outcome))
            self._count(sample, positions)
        for each in observed:
            self._learned.observe(*each)
        self.num_tokens += len(observed)

    def _fixed(self, path: tuple[int, ...], position: Position) -> FloatArray:
        """The bets on fixed alternatives, cached."""
        if len(self._cached_bets) > _MAX_CACHED_BETS:
            self._cached_bets.clear()
        if path not in self._cached_bets:
            self._cached_bets[path] = fixed_bets(position)
        return self._cached_bets[path]

    def _count(self, sample: tuple[int, ...], positions: dict[tuple[int, ...], Position]) -> None:
        self.prefixes.add(sample)
        probability = 1.0
        prefix = sample[: self.prefixes.length]
        for depth, token in enumerate(prefix):
            probability *= float(positions[sample[:depth]].p[token])
        self._probabilities[prefix] = probability

    def log_wealth(self) -> float:
        """The log of the joint wealth of all bettors."""
        return log_mean_wealth(self.log_wealths)

    def bound(self, error_rate: float) -> float:
        """The largest distance of the prefix distribution that is compatible with the samples."""
        empirical = distance_to_distribution(self.prefixes.counts, self._probabilities)
        return min(1.0, empirical + slack(error_rate, self.prefixes.num_samples))

    def frequencies(self) -> list[tuple[float, float]]:
        """Expected and observed frequencies of the most common prefixes."""
        counts = self.prefixes.counts
        num = max(1, self.prefixes.num_samples)
        return [
            (self._probabilities[prefix], count / num) for prefix, count in counts.most_common(MAX_REPORTED)
        ]


class TokenReader:
    """Maps a server's tokens to token ids of the reference model."""

    def __init__(self, model: Reference) -> None:
        self._model = model

    def __call__(self, tokens: Sequence[Token]) -> tuple[int, ...]:
        """The token ids; `END` becomes the end-of-sequence token unless the server returned that as well."""
        shown = (
            tokens[:-1]
            if len(tokens) > 1 and tokens[-1] == END and tokens[-2] in self._model.ends
            else tokens
        )
        ids = tuple(token if isinstance(token, int) else self._id_of(token) for token in shown)
        if ids and not (min(ids) >= 0 and max(ids) < self._model.vocab_size):
            raise VocabularyMismatch(
                f"the server returned token {max(ids)}, but the reference has {self._model.vocab_size}"
                " tokens: give the model that the server runs"
            )
        return ids

    def _id_of(self, text: str) -> int:
        ids = sorted(self._model.ends) if text == END else self._model.tokens_for_text(text)
        if len(ids) != 1:
            raise UnreadableAnswer(
                f"the server returns the token {text!r} without its id, and {len(ids)} tokens of the"
                " reference decode to this text: compare with --baseline instead"
            )
        return ids[0]
