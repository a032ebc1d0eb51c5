"""Sabotaged drafting: draft tokens sampled, reported or pruned wrongly, and random numbers used twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import accumulate
from operator import mul

import numpy as np

from forerun.audit.exact.enumeration import EnumeratedStep, sample_draft, sample_token
from forerun.audit.exact.toy_models import ExactDistribution, as_row
from forerun.control.candidates import Candidates
from forerun.control.controller import Controller
from forerun.control.step_cost import StepCost
from forerun.types import ROOT, Draft, Proposal


def resample_with_draft_noise(step: EnumeratedStep) -> None:
    """The recovered token is sampled with the number that sampled the draft token."""
    step.next_token_noise = step.draft_noise[0] if step.draft_noise else step.next_token_noise


def resample_with_acceptance_noise(step: EnumeratedStep) -> None:
    """The recovered token is sampled with the number that rejected the draft token."""
    step.next_token_noise = step.accept_noise[1]


def accept_with_draft_noise(step: EnumeratedStep) -> None:
    """The draft token is tested with the number that sampled it."""
    step.accept_noise[1] = step.draft_noise[0] if step.draft_noise else step.accept_noise[1]


def report_another_q(
    change: Callable[[ExactDistribution], ExactDistribution],
) -> Callable[[EnumeratedStep], Draft]:
    """Draft tokens are sampled from one q and another q is passed to the verifier."""

    def sample(step: EnumeratedStep) -> Draft:
        draft = sample_draft(step)
        parents, of_nodes = draft.parents.tolist(), draft.proposals_of_nodes()
        changed = {
            parents[node]: Proposal(as_row(change(tuple(q.probs))), q.replacement)
            for node, q in of_nodes.items()
        }
        return replace(draft, q=changed)

    return sample


def halfway_to_uniform(q: ExactDistribution) -> ExactDistribution:
    """Another temperature: every probability halfway to uniform."""
    return tuple((q_x + Fraction(1, len(q))) / 2 for q_x in q)


def to_eighths(q: ExactDistribution) -> ExactDistribution:
    """Low precision: rounded to eighths, at least one, and normalised."""
    rounded = [max(1, round(q_x * 8)) for q_x in q]
    return tuple(Fraction(r, sum(rounded)) for r in rounded)


def sample_in_low_precision(step: EnumeratedStep) -> Draft:
    """The draft token is sampled from a rounded q and verified with the precise one."""
    q = step.model.q(step.prefix)
    step.draft_noise.append(u := step.new_uniform())
    return Draft.chain([sample_token(to_eighths(q), u)], q=[Proposal(as_row(q))])


def sample_truncated(step: EnumeratedStep) -> Draft:
    """The draft token is sampled from q without its least likely token and verified with the full q."""
    q = step.model.q(step.prefix)
    lowest = q.index(min(q))
    step.draft_noise.append(u := step.new_uniform())
    truncated = [Fraction(0) if x == lowest else q_x for x, q_x in enumerate(q)]
    return Draft.chain([sample_token(truncated, u)], q=[Proposal(as_row(q))])


def merge_equal_siblings(step: EnumeratedStep) -> Draft:
    """Equal sampled siblings become one node."""
    draft = sample_draft(step)
    if len(draft) == 1 or draft.tokens[0] != draft.tokens[1]:
        return draft
    keep = np.array([0, *range(2, len(draft))], dtype=np.int64)
    parents = np.array([parent if parent <= 0 else parent - 1 for parent in draft.parents[keep].tolist()])
    return replace(draft, tokens=draft.tokens[keep], parents=parents, sampled=draft.sampled[keep])


def sort_siblings(step: EnumeratedStep) -> Draft:
    """Sampled siblings are sorted by token."""
    draft = sample_draft(step)
    tokens = draft.tokens.copy()
    tokens[:2] = np.sort(tokens[:2])
    return replace(draft, tokens=tokens)


def report_first_q(step: EnumeratedStep) -> Draft:
    """Siblings of two draft models are verified with the q of the first."""
    draft = sample_draft(step)
    return replace(draft, q={**draft.q, **{parent: each[0] for parent, each in _tuples(draft).items()}})


def swap_draft_models(step: EnumeratedStep) -> Draft:
    """The distributions of two draft models are assigned to each other's tokens."""
    draft = sample_draft(step)
    return replace(draft, q={**draft.q, **{parent: each[::-1] for parent, each in _tuples(draft).items()}})


def order_by_confidence(step: EnumeratedStep) -> Draft:
    """Of two draft models, the token with the higher q is verified first, each with its own q."""
    draft = sample_draft(step)
    if ROOT not in (pairs := _tuples(draft)):
        return draft
    (first, second), (x, y) = pairs[ROOT], draft.tokens[:2].tolist()
    if first.probs[x] >= second.probs[y]:
        return draft
    return replace(draft, tokens=draft.tokens[[1, 0]], q={ROOT: (second, first)})


def _tuples(draft: Draft) -> dict[int, tuple[Proposal, ...]]:
    """The distributions of a draft of siblings from several draft models."""
    return {parent: each for parent, each in draft.q.items() if isinstance(each, tuple)}


def truncate_by_value(step: EnumeratedStep) -> Draft:
    """The chain ends before the first token 0, as if that token were not worth verifying."""
    draft = sample_draft(step)
    zeros = np.flatnonzero(draft.tokens == 0)
    return _shortened(draft, int(zeros[0])) if zeros.size else draft


def prune_sampled_tokens(step: EnumeratedStep) -> Draft:
    """The controller treats sampled draft tokens as chosen: it estimates survival by q and prunes them."""
    draft = sample_draft(step)
    if not draft.sampled.all():
        return draft
    qs = draft.proposals_of_nodes().values()
    probs = [float(q.probs[token]) for q, token in zip(qs, draft.tokens.tolist(), strict=True)]
    controller = Controller(StepCost((1, 2), (1.0, 1.5), prior_variance=0.0))
    controller.admit("request", greedy=False)
    plan = controller.begin_step(["request"], rows=1)
    candidates = replace(
        Candidates.from_drafts([draft], partial(controller.kind, plan)),
        drafter_survival=np.array(list(accumulate(probs, mul)), dtype=np.float64),
        mandatory=np.zeros(len(draft), dtype=bool),
    )
    return _shortened(draft, int(controller.choose(plan, candidates).sum()))


def keep_most_likely_sample(step: EnumeratedStep) -> Draft:
    """Two tokens are sampled, and the one with the higher q is used as if it were the only sample."""
    q = step.model.q(step.prefix)
    step.draft_noise.extend([step.new_uniform(), step.new_uniform()])
    token = max((sample_token(q, u) for u in step.draft_noise), key=lambda x: q[x])
    return Draft.chain([token], q=[Proposal(as_row(q))])


def _shortened(draft: Draft, length: int) -> Draft:
    """The first nodes of a chain."""
    q = {node: proposal for node, proposal in draft.q.items() if node < length - 1}
    return replace(
        draft,
        tokens=draft.tokens[:length],
        parents=draft.parents[:length],
        sampled=draft.sampled[:length],
        q=q,
    )
