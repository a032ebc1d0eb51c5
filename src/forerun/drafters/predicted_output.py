"""The prediction drafter: proposes a request's own predicted output, where the output follows it.

A prediction is text that the client expects the output to repeat in large part, such as the old version of a
file that it asks to edit. An `Alignment` follows the output through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from forerun.config import PREDICTION
from forerun.drafters.matches import Ints
from forerun.types import BoolArray, Draft, Float32Array, FloatArray, IntArray, RequestView, Tokens, Verdict

MAX_CONTEXT: Final = 16
"""Maximum number of output tokens that realignment compares."""

NEAR_TOKENS: Final = 16
"""Tokens after a divergence among which a single equal token realigns."""

LOCAL_TOKENS: Final = 64
"""Tokens before or after a divergence among which two equal tokens realign."""

FAR_MATCH: Final = 4
"""Equal tokens that realign elsewhere in the prediction."""

MAX_CANDIDATES: Final = 256
"""Maximum number of positions that realignment compares: the nearest to the divergence. It bounds the time of
a step, whatever the prediction.
"""

BACKWARD_COST: Final = 2
"""The distance of a token before the divergence, relative to that of a token after it."""

_FIRST: Final = 0
"""The class of the output's first position."""

_BEFORE: Final = 1
"""The class of later positions before the output is aligned for the first time."""

_FIRST_RUN_CLASS: Final = 2
"""The first of six classes: 0, 1, 2, 3 to 4, 5 to 8 and more tokens since the output was aligned."""

_RATES: Final = np.array(
    [
        [0.50, 0.050, 0.500, 0.95, 0.96, 0.98, 0.99, 0.997],
        [0.40, 0.050, 0.350, 0.82, 0.86, 0.90, 0.93, 0.960],
        [0.02, 0.005, 0.007, 0.09, 0.15, 0.20, 0.40, 0.600],
    ]
)
"""How often the output has the predicted token, by class, in three cases: it copies the prediction, it
follows it with changes, or the two share no more than common phrases.
"""

_PRIOR: Final[FloatArray] = np.array([0.35, 0.35, 0.3])
"""The probability of each case before the first token."""

_PROB_CHANGE: Final = 0.005
"""The probability, per token, that another case begins."""


class Alignment:
    """Follows an output through a prediction.

    `position` is that of the prediction's token that the output is expected to have next. Where the output
    diverges, one token is taken to be replaced until a context of the output is found in the prediction
    again: the longest, and the nearest of the longest ones. `matched` marks the tokens of the prediction that
    the output had where they were expected.

    Survival is that of a mixture of the cases in `_RATES`; a few tokens tell which of them it is.
    """

    def __init__(self, prediction: Tokens) -> None:
        self.prediction: Ints = np.asarray(prediction[:], dtype=np.int32)
        self._order = np.argsort(self.prediction, kind="stable")
        self._sorted = self.prediction[self._order]
        self.position = 0
        self.matched: BoolArray = np.zeros(len(self.prediction), dtype=bool)
        self._run = 0
        self._class = _FIRST
        self._diverged_at = 0
        self._recent: list[int] = []
        self._case_probs = _PRIOR

    @property
    def num_matched(self) -> int:
        """The number of tokens of the prediction that the output had where they were expected."""
        return int(self.matched.sum())

    def extend(self, tokens: Tokens) -> None:
        """Follow the output by these tokens."""
        for token in tokens[:]:
            self._recent.append(int(token))
            self._advance(token)
        del self._recent[:-MAX_CONTEXT]

    def propose(self, num: int) -> tuple[list[int], Float32Array]:
        """The predicted tokens from `position` on, at most `num`, and the survival of each."""
        tokens: list[int] = self.prediction[self.position : self.position + num].tolist()
        classes = _RUN_CLASSES[np.minimum(self._run + np.arange(len(tokens)), _MAX_RUN)]
        classes[:1] = self._class
        survival = self._case_probs @ np.cumprod(_RATES[:, classes], axis=1)
        return tokens, survival.astype(np.float32)

    def _advance(self, token: int) -> None:
        position = self.position
        is_predicted = position < len(self.prediction) and self.prediction[position] == token
        if position < len(self.prediction):
            self._learn(is_predicted)
        if is_predicted:
            self.matched[position] = True
            self.position += 1
            self._run += 1
        else:
            self._diverge(token)
        self._class = int(_RUN_CLASSES[min(self._run, _MAX_RUN)]) if self.position else _BEFORE

    def _diverge(self, token: int) -> None:
        """Realign after a token that was not expected."""
        if self._run:
            self._diverged_at = self.position
        found, self._run = self._realign(token)
        if found >= 0:
            self.position = found + 1
        elif self.position:  # text before the prediction's first token replaces none of its tokens
            self.position = min(self.position + 1, len(self.prediction))

    def _learn(self, is_predicted: bool) -> None:
        """Update the probabilities of the cases by Bayes' rule."""
        rates = _RATES[:, self._class]
        joint = self._case_probs * (rates if is_predicted else 1.0 - rates)
        self._case_probs = (1.0 - _PROB_CHANGE) * joint / joint.sum() + _PROB_CHANGE * _PRIOR

    def _realign(self, token: int) -> tuple[int, int]:
        """The position of the last token of the output in the prediction, and the length of the match there.

        The position is -1 if the output's context is not found.
        """
        ends = self._nearest(token)
        lengths = np.ones(len(ends), dtype=np.int64)
        for length in range(1, min(len(self._recent), MAX_CONTEXT)):
            earlier = ends - length
            is_longer = (earlier >= 0) & (self.prediction[earlier] == self._recent[-1 - length])
            is_longer &= lengths == length
            if not is_longer.any():
                break
            lengths += is_longer
        distance = ends - self._diverged_at
        needed = np.where(np.abs(distance) <= LOCAL_TOKENS, 2, FAR_MATCH)
        needed[(distance >= 0) & (distance < NEAR_TOKENS)] = 1
        possible = np.flatnonzero(lengths >= needed)
        if not possible.size:
            return -1, 0
        cost = np.where(distance < 0, -BACKWARD_COST * distance, distance)
        best = possible[np.lexsort((cost[possible], -lengths[possible]))[0]]
        return int(ends[best]), int(lengths[best])

    def _nearest(self, token: int) -> IntArray:
        """The positions of a token in the prediction, in order; of many, those nearest to the divergence."""
        start, stop = np.searchsorted(self._sorted, [token, token + 1]).tolist()
        positions: IntArray = self._order[start:stop]
        if len(positions) > MAX_CANDIDATES:
            middle = int(np.searchsorted(positions, self._diverged_at))
            first = min(max(middle - MAX_CANDIDATES // 2, 0), len(positions) - MAX_CANDIDATES)
            positions = positions[first : first + MAX_CANDIDATES]
        return positions


def _run_class(run: int) -> int:
    """The class of a position by the number of tokens since the output was aligned."""
    return _FIRST_RUN_CLASS + (run if run <= 2 else (run - 1).bit_length() + 1)


_MAX_RUN: Final = 9
_RUN_CLASSES: Final[IntArray] = np.array([_run_class(run) for run in range(_MAX_RUN + 1)])


class PredictionDrafter:
    """Proposes the predicted output of requests that have one; never that of another request.

    Drafts depend on the request's tokens alone, so that all processes that draft for it agree.
    """

    def __init__(self) -> None:
        self._requests: dict[str, _PredictionState] = {}

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """One chain per view; an empty one without a prediction, and after the prediction's end."""
        return [
            Draft.chain([]) if view.prediction is None else self._draft(view, view.prediction, budget)
            for view, budget in zip(views, budgets, strict=True)
        ]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Nothing to learn: the output comes with the next `propose`."""

    def forget(self, id: str) -> None:  # noqa: A002
        """Drop a request."""
        self._requests.pop(id, None)

    def _draft(self, view: RequestView, prediction: Tokens, budget: int) -> Draft:
        state = self._requests.get(view.id)
        if state is None or state.num_tokens > len(view.tokens):
            state = self._requests[view.id] = _PredictionState(view, prediction)
        state.alignment.extend(view.tokens[state.num_tokens :])
        state.num_tokens = len(view.tokens)
        tokens, survival = state.alignment.propose(max(budget, 0))
        return Draft.chain(tokens, source=PREDICTION, survival=survival)


class _PredictionState:
    """The alignment of a request and the number of its tokens that it has followed."""

    def __init__(self, view: RequestView, prediction: Tokens) -> None:
        self.alignment = Alignment(prediction)
        self.num_tokens = len(view.tokens) if view.num_prompt is None else view.num_prompt


def count_predicted(prediction: Sequence[int], outputs: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The tokens of a prediction that outputs have, and those that they do not have, summed over outputs."""
    num_matched = 0
    for output in outputs:
        alignment = Alignment(prediction)
        alignment.extend(output)
        num_matched += alignment.num_matched
    return num_matched, len(prediction) * len(outputs) - num_matched
