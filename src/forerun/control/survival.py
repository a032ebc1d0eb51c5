"""The chance that a guess stands, from what its drafter says and from what became of guesses before.

Drafters order their guesses well and are bad at saying how likely they are, above all for text that is
drawn: a lookup knows what was said, not how sure the model was. So what a drafter states is read through a
logistic line, one for every kind of guess (who made it; for greedy requests or others), and moved by what
every request has for itself: a bias, and another for how it goes on once the first guess stands. Code that is
copied goes on for long; in a chat the next word may be right, and hardly ever the one behind it.

    logit(chance) = a + b * logit(stated chance) + c * log(depth) + bias [+ bias of what goes on]

Lines and biases are fitted while running, by one Newton step a round, and forget: the lines slowly, the
biases within some twenty rounds. A request begins with biases as those before it ended: texts come in kinds.
A guess survives if it and all it follows stand.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from forerun.core.jit import compiled
from forerun.types import BoolArray, FloatArray, IntArray

LINE: Final = (0.5, 1.0, 0.0)
"""A line before anything was seen: guesses stand a little more often than lookups think."""

LINE_TRUST: Final = 4.0
LINE_FORGETS: Final = 0.005
"""How much the first line counts, and the share of what was learnt since that a step forgets."""

BIAS_TRUST: Final = (1.0, 4.0)
BIAS_FORGETS: Final = 0.05
"""The same for a request's biases."""

PASSED_ON: Final = 0.3
"""What a request that is over counts for in the biases that the next one begins with."""

BIAS_MOVES: Final = 1.5
LINE_MOVES: Final = 0.5
"""No step moves a bias or a line by more: the guesses of one chain say nearly the same."""

FLATTEST: Final = 0.1
STEEPEST: Final = 3.0
"""The slopes that a line may have: whoever is thought likelier is."""

LEAST: Final = 1e-3
"""No chance is nearer to 0 or 1."""

LOG: Final = np.log(np.maximum(np.arange(1025), 1))
"""Logarithms of depths: drafts are no deeper than this."""


class SurvivalEstimator:
    """Estimates for requests in numbered places, and guesses of numbered kinds."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, bool], int] = {}
        self._places: dict[str, int] = {}
        self._free: list[int] = []
        self.lines: FloatArray = np.empty((0, 3))
        self.line_trust: FloatArray = np.empty((0, 3, 3))
        self.bias: FloatArray = np.zeros((0, 0, 2))
        self.bias_trust: FloatArray = np.zeros((0, 0, 2))
        self._first_bias: FloatArray = np.zeros((0, 2))

    def kind(self, source: str, *, greedy: bool) -> int:
        """The number of a kind of guess."""
        number = self._kinds.setdefault((source, greedy), len(self._kinds))
        if number == len(self.lines):
            self.lines = np.vstack([self.lines, [LINE]])
            self.line_trust = np.concatenate([self.line_trust, LINE_TRUST * np.eye(3)[None]])
            self._resize()
        return number

    def admit(self, name: str) -> int:
        """A place for a new request."""
        if not self._free:
            known = len(self.bias)
            self._free = list(range(max(2 * known, 8) - 1, known - 1, -1))
            self._resize(max(2 * known, 8))
        place = self._places[name] = self._free.pop()
        self.bias[place], self.bias_trust[place] = self._first_bias, BIAS_TRUST
        return place

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def place(self, name: str) -> int:
        """Where a request is."""
        return self._places[name]

    def forget(self, name: str) -> None:
        """A request is over."""
        place = self._places.pop(name, None)
        if place is not None:
            self._free.append(place)
            known = np.minimum(self.bias_trust[place] - BIAS_TRUST, 1.0)  # nothing, if nobody guessed
            self._first_bias += PASSED_ON * known * (self.bias[place] - self._first_bias)

    def _resize(self, num_places: int | None = None) -> None:
        """Make room for more places or kinds; what is known stays."""
        places, kinds, _ = self.bias.shape
        wanted = (num_places or places, len(self.lines), 2)
        bias, trust, first = np.zeros(wanted), np.full(wanted, BIAS_TRUST), np.zeros(wanted[1:])
        bias[:places, :kinds], trust[:places, :kinds] = self.bias, self.bias_trust
        first[:kinds] = self._first_bias
        self.bias, self.bias_trust, self._first_bias = bias, trust, first

    def estimate(
        self, stated: FloatArray, parents: IntArray, kinds: IntArray, places: IntArray
    ) -> FloatArray:
        """The survival of every guess. `stated` is what drafters say of it; `parents` are among the same
        guesses, or below 0.
        """
        return survive(stated, parents, kinds, places, self.lines, self.bias)

    def learn(
        self,
        stated: FloatArray,
        parents: IntArray,
        kinds: IntArray,
        places: IntArray,
        stood: BoolArray,
    ) -> None:
        """What became of the guesses of a step."""
        learn(
            (stated, parents, kinds, places),
            stood,
            self.lines,
            self.line_trust,
            self.bias,
            self.bias_trust,
        )


@compiled
def _logit(stated: FloatArray, parents: IntArray, node: int) -> float:
    """What a drafter says of a guess, given that those before it stand."""
    above = 1.0 if parents[node] < 0 else stated[parents[node]]
    chance = stated[node] / above if above > 0.0 else 0.0
    chance = min(max(chance, LEAST), 1.0 - LEAST)
    return float(np.log(chance / (1.0 - chance)))


@compiled
def survive(
    stated: FloatArray,
    parents: IntArray,
    kinds: IntArray,
    places: IntArray,
    lines: FloatArray,
    bias: FloatArray,
) -> FloatArray:
    """The survivals of guesses, parents first."""
    out = np.empty(len(stated))
    depths = np.empty(len(stated), dtype=np.int64)
    for node in range(len(stated)):
        kind, above = kinds[node], parents[node]
        depths[node] = 1 if above < 0 else depths[above] + 1
        if above >= 0 and out[above] < LEAST:  # what follows it need not be known better
            out[node] = LEAST * out[above]
            continue
        z = _line(lines[kind], _logit(stated, parents, node), depths[node])
        z += _bias(bias[places[node], kind], depths[node])
        chance = min(max(1.0 / (1.0 + np.exp(-z)), LEAST), 1.0 - LEAST)
        out[node] = chance if above < 0 else chance * out[above]
    return out


@compiled
def _line(line: FloatArray, x: float, depth: int) -> float:
    """A line at a stated logit and a depth."""
    return float(line[0] + line[1] * x + line[2] * LOG[min(depth, len(LOG) - 1)])


@compiled
def _bias(bias: FloatArray, depth: int) -> float:
    """A request's bias at a depth."""
    return float(bias[0] if depth == 1 else bias[0] + bias[1])


@compiled
def learn(
    guesses: tuple[FloatArray, IntArray, IntArray, IntArray],
    stood: BoolArray,
    lines: FloatArray,
    line_trust: FloatArray,
    bias: FloatArray,
    bias_trust: FloatArray,
) -> None:
    """One Newton step for every line and every bias that had guesses: only those whose parent stood count."""
    stated, parents, kinds, places = guesses
    slopes = np.zeros((len(lines), 3))
    curves = np.zeros((len(lines), 3, 3))
    pull, bend = np.zeros(bias.shape), np.zeros(bias.shape)
    depths, x = np.empty(len(stated), dtype=np.int64), np.ones(3)
    for node in range(len(stated)):
        kind, place, above = kinds[node], places[node], parents[node]
        depths[node] = 1 if above < 0 else depths[above] + 1
        if above >= 0 and not stood[above]:
            continue
        x[1], x[2] = _logit(stated, parents, node), LOG[min(depths[node], len(LOG) - 1)]
        z = _line(lines[kind], x[1], depths[node]) + _bias(bias[place, kind], depths[node])
        p = 1.0 / (1.0 + np.exp(-z))
        error, weight = stood[node] - p, p * (1.0 - p)
        for which in range(1 if depths[node] == 1 else 2):
            pull[place, kind, which] += error
            bend[place, kind, which] += weight
        for i in range(3):
            slopes[kind, i] += error * x[i]
            for j in range(3):
                curves[kind, i, j] += weight * x[i] * x[j]
    for kind in range(len(lines)):
        if curves[kind, 0, 0] > 0.0:
            _move_line(lines[kind], line_trust[kind], slopes[kind], curves[kind])
    _move_biases(bias, bias_trust, pull, bend)


@compiled
def _move_biases(bias: FloatArray, bias_trust: FloatArray, pull: FloatArray, bend: FloatArray) -> None:
    """A Newton step of every bias that had guesses, held by 0."""
    for place, kind, which in zip(*np.nonzero(bend)):  # noqa: B905 (compiled)
        at, held = (place, kind, which), BIAS_FORGETS * BIAS_TRUST[which]
        trust = (1 - BIAS_FORGETS) * bias_trust[at] + held + bend[at]
        move = (pull[at] - held * bias[at]) / trust
        bias[at] += min(max(move, -BIAS_MOVES), BIAS_MOVES)
        bias_trust[at] = trust


@compiled
def _move_line(line: FloatArray, trust: FloatArray, slope: FloatArray, curve: FloatArray) -> None:
    """A Newton step of one line, held by what it began as."""
    pull = slope.copy()
    for i in range(3):
        for j in range(3):
            trust[i, j] = (1 - LINE_FORGETS) * trust[i, j] + curve[i, j]
        trust[i, i] += LINE_FORGETS * LINE_TRUST
        pull[i] -= LINE_FORGETS * LINE_TRUST * (line[i] - LINE[i])
    move = np.linalg.solve(trust, pull)
    for i in range(3):
        line[i] += min(max(move[i], -LINE_MOVES), LINE_MOVES)
    line[1] = min(max(line[1], FLATTEST), STEEPEST)
