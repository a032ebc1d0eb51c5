"""The two-sample test: whether samples of two servers follow the same distribution. It needs no model.

Samples of the two servers with the same prefix are paired, and bettors bet on the difference of the two next
tokens. A token is revealed only once its sample is paired at that position, and the sample proceeds to its
next position after the bet is settled. Bets therefore never depend on tokens that they are settled with.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from forerun.audit.sampled.betting import STAKES, log_growth, log_mean_wealth
from forerun.audit.sampled.distance import distance_between_counts, two_sample_slack
from forerun.audit.sampled.lookup_candidates import lookup_candidates
from forerun.audit.sampled.prefixes import MAX_REPORTED, PrefixCounts
from forerun.servers.completions import Token

TokenPath: TypeAlias = tuple[Token, ...]
Witness: TypeAlias = Callable[["_PositionCounts", Token], float]
"""Maps a token to [0, 1]: high if the alternative is that the candidate emits it more often."""


class _PositionCounts:
    """Tokens that both servers sampled at a position."""

    __slots__ = ("baseline", "candidate", "lookup", "most_likely", "prefix")

    def __init__(self, prefix: TokenPath, lookup: frozenset[Token]) -> None:
        self.prefix = frozenset(prefix)
        self.lookup = lookup
        self.baseline: Counter[Token] = Counter()
        self.candidate: Counter[Token] = Counter()
        self.most_likely: Token | None = None

    def add(self, candidate: Token, baseline: Token) -> None:
        self.candidate[candidate] += 1
        self.baseline[baseline] += 1
        if self.most_likely is None or self.baseline[baseline] > self.baseline[self.most_likely]:
            self.most_likely = baseline


def _learned(counts: _PositionCounts, token: Token) -> float:
    excess = counts.candidate[token] - counts.baseline[token]
    return 0.5 if excess == 0 else float(excess > 0)


WITNESSES: dict[str, Witness] = {
    "distribution differs at single positions": _learned,
    "draft tokens accepted too often": lambda counts, token: float(token in counts.lookup),
    "draft tokens accepted too rarely": lambda counts, token: float(token not in counts.lookup),
    "tokens that the baseline does not sample": lambda counts, token: float(counts.baseline[token] == 0),
    "most likely token sampled too often": lambda counts, token: float(token == counts.most_likely),
    "recent tokens repeated too often": lambda counts, token: float(token in counts.prefix),
}


class AgainstServer:
    """The bets and the prefix counts of one case."""

    alternatives = tuple(name for name in WITNESSES for _ in STAKES)

    def __init__(self, prompt: Sequence[Token], epsilon: float, num_bounded_tokens: int) -> None:
        self.log_wealths = np.zeros(len(self.alternatives))
        self.epsilon = epsilon
        self.num_tokens = 0
        self.prefixes = PrefixCounts(num_bounded_tokens)
        self._baseline_prefixes = PrefixCounts(num_bounded_tokens)
        self._prompt = tuple(prompt)
        self._positions: dict[TokenPath, _PositionCounts] = {}
        self._unpaired: dict[TokenPath, tuple[deque[TokenPath], deque[TokenPath]]] = defaultdict(
            lambda: (deque(), deque())
        )

    def update(self, samples: Sequence[TokenPath], baseline: Sequence[TokenPath]) -> None:
        """Pair the samples of the two servers, in the order of their requests."""
        for sample, other in zip(samples, baseline, strict=True):
            self.prefixes.add(sample)
            self._baseline_prefixes.add(other)
            self._unpaired[()][0].append(sample)
            self._unpaired[()][1].append(other)
            self._pair([()])

    def _pair(self, paths: list[TokenPath]) -> None:
        """Pair samples at these positions, then at the positions they proceed to."""
        while paths:
            path = paths.pop()
            samples, others = self._unpaired[path]
            while samples and others:
                pair = samples.popleft(), others.popleft()
                depth = len(path)
                self._bet(path, pair[0][depth], pair[1][depth])
                for side, sample in enumerate(pair):
                    if len(sample) > depth + 1:
                        self._unpaired[sample[: depth + 1]][side].append(sample)
                        paths.append(sample[: depth + 1])

    def _bet(self, path: TokenPath, candidate: Token, baseline: Token) -> None:
        counts = self._positions.get(path)
        if counts is None:
            counts = self._positions[path] = _PositionCounts(path, lookup_candidates((*self._prompt, *path)))
        differences = np.array(
            [witness(counts, candidate) - witness(counts, baseline) for witness in WITNESSES.values()]
        )
        self.log_wealths += log_growth(1.0 + (differences - self.epsilon) / (1.0 + self.epsilon))
        counts.add(candidate, baseline)
        self.num_tokens += 1

    def log_wealth(self) -> float:
        """The log of the joint wealth of all bettors."""
        return log_mean_wealth(self.log_wealths)

    def bound(self, error_rate: float) -> float:
        """The largest distance of the two prefix distributions that is compatible with the samples."""
        one, other = self.prefixes, self._baseline_prefixes
        empirical = distance_between_counts(one.counts, other.counts)
        return min(1.0, empirical + two_sample_slack(error_rate, one.num_samples, other.num_samples))

    def frequencies(self) -> list[tuple[float, float]]:
        """Frequencies of the most common prefixes: the baseline's and the candidate's."""
        baseline, candidate = self._baseline_prefixes.counts, self.prefixes.counts
        num = max(1, self.prefixes.num_samples)
        return [
            (baseline[prefix] / num, candidate[prefix] / num)
            for prefix, _ in (baseline + candidate).most_common(MAX_REPORTED)
        ]
