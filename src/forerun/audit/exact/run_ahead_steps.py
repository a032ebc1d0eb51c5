"""Run-ahead drafting in the enumeration: drafts prepared for outcomes of a step, and sabotaged ways to do it.

The outcomes are chosen by the production code. What is prepared for the others is drawn too, as in an engine,
and never used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from forerun.audit.exact.enumeration import EnumeratedStep, Interval, sample_draft, sample_token
from forerun.audit.exact.toy_models import Prefix, as_row
from forerun.drafters.outcomes import Outcome, likely_outcomes
from forerun.types import Draft, Proposal, Verdict

MAX_OUTCOMES: Final = 2
"""Prepared outcomes: some outcomes of every step are hits, and some are misses."""

RATE: Final = 0.5
"""The acceptance rate by which outcomes are chosen."""


def draft_ahead(step: EnumeratedStep) -> Draft:
    """The draft that the step before prepared, or a fresh one; then drafts for the outcomes of this one."""
    draft = _chain(step, step.carried) if step.carried else sample_draft(step)
    step.prepared = {
        path: (_sample(step, step.prefix + path),)
        for path in (_path(draft, outcome) for outcome in _outcomes(step, draft))
    }
    return draft


def prepared_for_outcome(step: EnumeratedStep, verdict: Verdict) -> tuple[Any, ...]:
    """The draft that was prepared for what the verification emitted, if there is one."""
    return step.prepared.get(_emitted(step, verdict), ())


def prepared_if_it_begins_with_zero(step: EnumeratedStep, verdict: Verdict) -> tuple[Any, ...]:
    """Sabotaged: a prepared draft is used or not according to its tokens."""
    tokens = prepared_for_outcome(step, verdict)
    return tokens if tokens[:1] == (0,) else ()


def prepared_for_another_outcome(step: EnumeratedStep, verdict: Verdict) -> tuple[Any, ...]:
    """Sabotaged: on a miss, a draft for another outcome is used, and reported with the q of this one."""
    return step.prepared.get(_emitted(step, verdict)) or next(iter(step.prepared.values()), ())


def noise_of_verification(step: EnumeratedStep, verdict: Verdict) -> tuple[Interval, ...]:  # noqa: ARG001
    """Sabotaged: the next draft is sampled with the number that tested the first draft token."""
    return ((step.accept_noise[1].low, step.accept_noise[1].high),)


def draft_the_likelier_of_two(step: EnumeratedStep) -> Draft:
    """Sabotaged: two drafts are prepared for the likeliest outcome, and the likelier one is kept."""
    draft = _chain(step, step.carried) if step.carried else sample_draft(step)
    path = _path(draft, _outcomes(step, draft)[0])
    tokens = [_sample(step, step.prefix + path) for _ in range(2)]
    step.prepared = {path: (max(tokens, key=step.model.q(step.prefix + path).__getitem__),)}
    return draft


def _outcomes(step: EnumeratedStep, draft: Draft) -> list[Outcome]:
    """The outcomes to prepare for, by the draft model's own distributions."""
    tokens = draft.tokens.tolist()
    candidates = []
    for k in range(len(tokens) + 1):
        q = step.model.q(step.prefix + tuple(tokens[:k]))
        rejected = tokens[k] if k < len(tokens) else None
        candidates.append([(x, float(q_x)) for x, q_x in enumerate(q) if x != rejected])
    return likely_outcomes(candidates, RATE, MAX_OUTCOMES)


def _path(draft: Draft, outcome: Outcome) -> Prefix:
    return (*draft.tokens[: outcome.num_accepted].tolist(), outcome.token)


def _emitted(step: EnumeratedStep, verdict: Verdict) -> Prefix:
    assert step.draft is not None
    return tuple(verdict.tokens(step.draft))


def _sample(step: EnumeratedStep, prefix: Prefix) -> int:
    return sample_token(step.model.q(prefix), step.new_uniform())


def _chain(step: EnumeratedStep, tokens: Sequence[int]) -> Draft:
    """A prepared chain with its q."""
    q = [Proposal(as_row(step.model.q(step.prefix + tuple(tokens[:i])))) for i in range(len(tokens))]
    return Draft.chain(list(tokens), q=q)
