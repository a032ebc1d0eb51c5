"""Speculation played over every outcome: draft, verify, commit, roll back, and again.

All outcomes that are still open are judged in one batch, so requests of different depths and drafts share
every call, as they do in an engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from forerun.audit.exact.symbolic_random import Branch, Uniform
from forerun.audit.exact.toy_models import Prefix, ToyModel, TreeShape, as_row
from forerun.core.draft_forest import Forest
from forerun.types import Draft, Proposal, Verdict

Verifier: TypeAlias = Callable[[Forest, Any, Any, Any], list[Verdict]]
Interval: TypeAlias = tuple[Fraction, Fraction]

BATCH = 256
"""Outcomes judged in one call."""


@dataclass
class EnumeratedStep:
    """One outcome of one round: the request, its random numbers and its draft.

    `carried` are intervals of numbers that an earlier round used and this one uses again; an honest engine
    carries none.
    """

    world: ToyModel
    shape: TreeShape
    prefix: Prefix
    carried: tuple[Interval, ...]
    branch: Branch
    draft: Draft | None = None
    drawn: list[Uniform] = field(default_factory=list)
    judges: list[Uniform] = field(default_factory=list)
    picker: Uniform | None = None

    def fresh(self) -> Uniform:
        """A number nobody has used."""
        return Uniform(self.branch)

    def contexts(self) -> list[Prefix]:
        """What the target sees at each row: the root, then every node."""
        assert self.draft is not None
        paths = [self.draft.path(node) for node in range(len(self.draft))]
        guessed = [tuple(int(self.draft.tokens[node]) for node in path) for path in paths]
        return [self.prefix, *(self.prefix + tokens for tokens in guessed)]


Drawing: TypeAlias = Callable[[EnumeratedStep], Draft]
Sharing: TypeAlias = Callable[[EnumeratedStep], None]


@dataclass(frozen=True)
class StepModel:
    """How a round is played: who draws, who verifies, and which numbers are shared that should not be."""

    verify: Verifier
    draw: Drawing
    share: Sharing | None = None
    carry: Callable[[EnumeratedStep, Verdict], tuple[Interval, ...]] | None = None


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put something else behind one name of the production code for a while."""
    absent = object()
    original = getattr(owner, name, absent)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if original is absent:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def with_replaced(verifier: Verifier, owner: Any, name: str, value: Any) -> Verifier:
    """A verifier whose code finds something else under this name."""

    def verify(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
        with replaced(owner, name, value):
            return verifier(forest, p, u, v)

    return verify


@dataclass(frozen=True)
class EnumerationCase:
    """A world, and the trees guessed in it round after round."""

    world: ToyModel
    shapes: tuple[TreeShape, ...]


@dataclass(frozen=True)
class Emitted:
    """What all outcomes of a case emitted, with their weights, and how many outcomes there were."""

    law: dict[Prefix, Fraction]
    num_outcomes: int


State: TypeAlias = tuple[int, Prefix, tuple[Interval, ...]]


def play_out(engine: StepModel, cases: Sequence[EnumerationCase]) -> list[Emitted]:
    """Play every case over all outcomes of all its rounds; all cases share one vocabulary and every call."""
    states: dict[State, Fraction] = {(i, (), ()): Fraction(1) for i in range(len(cases))}
    num_outcomes = [0] * len(cases)
    for number in range(max(len(case.shapes) for case in cases)):
        after: dict[State, Fraction] = defaultdict(Fraction)
        for (i, prefix, _), weight, play, verdict in _outcomes(engine, cases, number, states):
            num_outcomes[i] += 1
            assert play.draft is not None
            carried = engine.carry(play, verdict) if engine.carry else ()
            after[i, prefix + tuple(verdict.tokens(play.draft)), carried] += weight
        states = after
    laws: list[dict[Prefix, Fraction]] = [defaultdict(Fraction) for _ in cases]
    for (i, prefix, _), weight in states.items():
        laws[i][prefix] += weight
    return [Emitted(dict(law), num) for law, num in zip(laws, num_outcomes, strict=True)]


def _outcomes(
    engine: StepModel, cases: Sequence[EnumerationCase], number: int, states: dict[State, Fraction]
) -> Iterator[tuple[State, Fraction, EnumeratedStep, Verdict]]:
    """Every outcome of a round from every state, with its weight."""
    waiting: list[tuple[State, Fraction, tuple[bool, ...]]] = [
        (state, weight, ()) for state, weight in states.items()
    ]
    while waiting:
        batch, waiting = waiting[-BATCH:], waiting[:-BATCH]
        plays = [
            EnumeratedStep(cases[i].world, cases[i].shapes[number], prefix, carried, Branch(script))
            for (i, prefix, carried), _, script in batch
        ]
        for (state, weight, _), play, verdict in zip(batch, plays, play_round(engine, plays), strict=True):
            waiting += [(state, weight, script) for script in play.branch.others]
            yield state, weight * play.branch.weight, play, verdict


def play_round(engine: StepModel, plays: Sequence[EnumeratedStep]) -> list[Verdict]:
    """Draft for each request, then verify all of them at once."""
    for play in plays:
        play.draft = engine.draw(play)
        play.judges = [play.fresh() for _ in range(len(play.draft) + 1)]
        play.picker = play.fresh()
        if engine.share:
            engine.share(play)
    forest = Forest.pack([play.draft for play in plays if play.draft is not None])
    p = np.stack([play.world.p_row(context) for play in plays for context in play.contexts()])
    return engine.verify(
        forest,
        p,
        _objects([u for play in plays for u in play.judges]),
        _objects([play.picker for play in plays]),
    )


def draw_tokens(play: EnumeratedStep) -> Draft:
    """Draw each sampled node from q after the nodes above it; a chosen node is q's likeliest unused token."""
    shape, world = play.shape, play.world
    tokens: list[int] = []
    proposals: dict[int, Proposal] = {}
    for node, (parent, sampled) in enumerate(zip(shape.parents, shape.sampled, strict=True)):
        above = _path(shape, tokens, parent)
        q = world.q(play.prefix + above)
        before = [tokens[i] for i in range(node) if shape.parents[i] == parent]
        if sampled:
            gone = [tokens[i] for i in range(node) if shape.parents[i] == parent and shape.sampled[i]]
            left = [0 if x in gone and not shape.replacement else q_x for x, q_x in enumerate(q)]
            u = Uniform(play.branch, *play.carried[node]) if node < len(play.carried) else play.fresh()
            play.drawn.append(u)
            tokens.append(draw(left, u))
            proposals[parent] = Proposal(as_row(q), shape.replacement)
        else:
            unused = [x for x in range(len(q)) if x not in before] or [0]
            tokens.append(max(unused, key=q.__getitem__))
    return Draft(np.array(tokens), np.array(shape.parents), np.array(shape.sampled), proposals)


def draw(weights: Sequence[Fraction | int], u: Uniform) -> int:
    """The token whose part of the total u falls into."""
    total, running = Fraction(sum(weights)), Fraction(0)
    for token, weight in enumerate(weights):
        running += weight
        if weight and u.below(running / total if total != 1 else running):
            return token
    raise AssertionError("u lies in [0, 1)")


def _path(shape: TreeShape, tokens: Sequence[int], node: int) -> Prefix:
    """The tokens from the root to a node."""
    path: list[int] = []
    while node >= 0:
        path.append(tokens[node])
        node = shape.parents[node]
    return tuple(reversed(path))


def _objects(items: Sequence[Any]) -> Any:
    """A NumPy array that holds these objects as they are."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array
