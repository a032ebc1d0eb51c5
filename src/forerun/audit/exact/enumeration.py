"""Speculative steps over every outcome: draft, verify, commit, roll back, repeat.

All open outcomes are verified in one batch, so requests with different depths and drafts share every call, as
they do in an engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
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

BATCH_SIZE = 256
"""Number of outcomes verified per call."""


@dataclass
class EnumeratedStep:
    """One outcome of one step: the request, its random numbers and its draft.

    `carried` is what the step before left for this one: intervals of numbers that both use, which engines
    reuse not at all, or a draft that was prepared for its outcome. `prepared` are drafts for outcomes of this
    step.
    """

    model: ToyModel
    shape: TreeShape
    prefix: Prefix
    carried: tuple[Any, ...]
    branch: Branch
    draft: Draft | None = None
    draft_noise: list[Uniform] = field(default_factory=list)
    accept_noise: list[Uniform] = field(default_factory=list)
    next_token_noise: Uniform | None = None
    prepared: dict[Prefix, Prefix] = field(default_factory=dict)

    def new_uniform(self) -> Uniform:
        """A uniform that has not been used."""
        return Uniform(self.branch)

    def contexts(self) -> list[Prefix]:
        """The prefix at each row: the root, then every node."""
        assert self.draft is not None
        paths = [self.draft.path(node) for node in range(len(self.draft))]
        drafted = [tuple(int(self.draft.tokens[node]) for node in path) for path in paths]
        return [self.prefix, *(self.prefix + tokens for tokens in drafted)]


DraftSampler: TypeAlias = Callable[[EnumeratedStep], Draft]
NoiseSharing: TypeAlias = Callable[[EnumeratedStep], None]


@dataclass(frozen=True)
class StepModel:
    """How a step runs: verifier, drafting, noise that mutants share, and what it leaves for the next step."""

    verify: Verifier
    draft: DraftSampler
    share_noise: NoiseSharing | None = None
    carry: Callable[[EnumeratedStep, Verdict], tuple[Any, ...]] | None = None


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Temporarily replace an attribute of the production code."""
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


def with_patched(verifier: Verifier, owner: Any, name: str, value: Any) -> Verifier:
    """A verifier that runs with an attribute of the production code replaced."""

    def verify(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
        with patched(owner, name, value):
            return verifier(forest, p, u, v)

    return verify


@dataclass(frozen=True)
class EnumerationCase:
    """A toy model, and the tree shapes drafted in successive steps."""

    model: ToyModel
    shapes: tuple[TreeShape, ...]


@dataclass(frozen=True)
class EmittedDistribution:
    """Probability of each emitted sequence, and the number of outcomes visited."""

    probabilities: dict[Prefix, Fraction]
    num_outcomes: int


State: TypeAlias = tuple[int, Prefix, tuple[Any, ...]]


def enumerate_steps(step_model: StepModel, cases: Sequence[EnumerationCase]) -> list[EmittedDistribution]:
    """Run every case over all outcomes of all its steps; all cases share one vocabulary and every call."""
    states: dict[State, Fraction] = {(i, (), ()): Fraction(1) for i in range(len(cases))}
    num_outcomes = [0] * len(cases)
    for number in range(max(len(case.shapes) for case in cases)):
        after: dict[State, Fraction] = defaultdict(Fraction)
        for (i, prefix, _), weight, step, verdict in _outcomes(step_model, cases, number, states):
            num_outcomes[i] += 1
            assert step.draft is not None
            carried = step_model.carry(step, verdict) if step_model.carry else ()
            after[i, prefix + tuple(verdict.tokens(step.draft)), carried] += weight
        states = after
    emitted: list[dict[Prefix, Fraction]] = [defaultdict(Fraction) for _ in cases]
    for (i, prefix, _), weight in states.items():
        emitted[i][prefix] += weight
    return [EmittedDistribution(dict(each), num) for each, num in zip(emitted, num_outcomes, strict=True)]


def _outcomes(
    step_model: StepModel, cases: Sequence[EnumerationCase], number: int, states: dict[State, Fraction]
) -> Iterator[tuple[State, Fraction, EnumeratedStep, Verdict]]:
    """Every outcome of a step from every state, with its weight."""
    pending: list[tuple[State, Fraction, tuple[bool, ...]]] = [
        (state, weight, ()) for state, weight in states.items()
    ]
    while pending:
        batch, pending = pending[-BATCH_SIZE:], pending[:-BATCH_SIZE]
        steps = [
            EnumeratedStep(cases[i].model, cases[i].shapes[number], prefix, carried, Branch(script))
            for (i, prefix, carried), _, script in batch
        ]
        for (state, weight, _), step, verdict in zip(batch, steps, run_step(step_model, steps), strict=True):
            pending += [(state, weight, script) for script in step.branch.unexplored]
            yield state, weight * step.branch.weight, step, verdict


def run_step(step_model: StepModel, steps: Sequence[EnumeratedStep]) -> list[Verdict]:
    """Draft for each request, then verify all of them in one call."""
    for step in steps:
        step.draft = step_model.draft(step)
        step.accept_noise = [step.new_uniform() for _ in range(len(step.draft) + 1)]
        step.next_token_noise = step.new_uniform()
        if step_model.share_noise:
            step_model.share_noise(step)
    forest = Forest.pack([step.draft for step in steps if step.draft is not None])
    p = np.stack([step.model.p_row(context) for step in steps for context in step.contexts()])
    return step_model.verify(
        forest,
        p,
        _object_array([u for step in steps for u in step.accept_noise]),
        _object_array([step.next_token_noise for step in steps]),
    )


def sample_draft(step: EnumeratedStep) -> Draft:
    """Sample each sampled node from q given its ancestors; a chosen node is q's most likely unused token."""
    shape, model = step.shape, step.model
    tokens: list[int] = []
    proposals: dict[tuple[int, int], Proposal] = {}
    for node, (parent, sampled) in enumerate(zip(shape.parents, shape.sampled, strict=True)):
        above = _path(shape, tokens, parent)
        source = shape.model(node)
        q = model.q(step.prefix + above, source)
        before = [tokens[i] for i in range(node) if shape.parents[i] == parent]
        if sampled:
            excluded = [
                tokens[i]
                for i in range(node)
                if shape.parents[i] == parent and shape.sampled[i] and shape.model(i) == source
            ]
            weights = [0 if x in excluded and not shape.replacement else q_x for x, q_x in enumerate(q)]
            u = Uniform(step.branch, *step.carried[node]) if node < len(step.carried) else step.new_uniform()
            step.draft_noise.append(u)
            tokens.append(sample_token(weights, u))
            proposals.setdefault((parent, source), Proposal(as_row(q), shape.replacement))
        else:
            unused = [x for x in range(len(q)) if x not in before] or [0]
            tokens.append(max(unused, key=q.__getitem__))
    return Draft(np.array(tokens), np.array(shape.parents), np.array(shape.sampled), _q_of(shape, proposals))


def _q_of(
    shape: TreeShape, proposals: Mapping[tuple[int, int], Proposal]
) -> dict[int, Proposal | tuple[Proposal, ...]]:
    """The distributions by parent: one for all siblings from the same draft model, otherwise one for each."""
    q: dict[int, Proposal | tuple[Proposal, ...]] = {}
    for parent in dict.fromkeys(parent for parent, _ in proposals):
        siblings = [
            proposals[parent, shape.model(node)]
            for node, above in enumerate(shape.parents)
            if above == parent and shape.sampled[node]
        ]
        q[parent] = tuple(siblings) if len(set(map(id, siblings))) > 1 else siblings[0]
    return q


def sample_token(weights: Sequence[Fraction | int], u: Uniform) -> int:
    """The token whose interval of the cumulative weights contains u."""
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


def _object_array(items: Sequence[Any]) -> Any:
    """A NumPy object array of these items."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array
