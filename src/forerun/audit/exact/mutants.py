"""Sabotaged speculation (mutants) that the enumeration must catch.

Some are defects that public engines shipped. Each changes one thing: how draft tokens are sampled or
reported, which random numbers are shared, or a line of the production verifier (patched for the duration of
the run).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from forerun.audit.exact.claims import (
    AuditedVerifier,
    Claim,
    ClaimKind,
    noise_of_unverified,
    prove,
    prove_bound,
    with_lenience,
)
from forerun.audit.exact.enumeration import (
    EnumeratedStep,
    StepModel,
    Verifier,
    patched,
    sample_draft,
    sample_token,
    with_patched,
)
from forerun.audit.exact.toy_models import CHAINS, ExactDistribution, TreeShape, as_row, trees
from forerun.control.candidates import Candidates
from forerun.control.controller import Controller
from forerun.control.step_cost import StepCost
from forerun.core import arrays
from forerun.core import block_verification as block_module
from forerun.core import rejection_sampling as rejection_module
from forerun.core.acceptance import accepts, residual_mass, sample_inverse_cdf
from forerun.core.block_verification import block_verify
from forerun.core.draft_forest import NONE, Forest
from forerun.core.rejection_sampling import SiblingVerifier, rejection_sample
from forerun.types import Draft, Proposal, Verdict

PAIRS = trees(replacement=True)[:2]
PAIRS_WITHOUT = trees(replacement=False)[:2]


# --- random numbers that must not be shared


def resample_with_draft_noise(step: EnumeratedStep) -> None:
    """The recovered token is sampled with the number that sampled the draft token."""
    step.next_token_noise = step.draft_noise[0] if step.draft_noise else step.next_token_noise


def resample_with_acceptance_noise(step: EnumeratedStep) -> None:
    """The recovered token is sampled with the number that rejected the draft token."""
    step.next_token_noise = step.accept_noise[1]


def accept_with_draft_noise(step: EnumeratedStep) -> None:
    """The draft token is tested with the number that sampled it."""
    step.accept_noise[1] = step.draft_noise[0] if step.draft_noise else step.accept_noise[1]


# --- drafts that are sampled or reported wrongly


def report_another_q(
    change: Callable[[ExactDistribution], ExactDistribution],
) -> Callable[[EnumeratedStep], Draft]:
    """Draft tokens are sampled from one q and another q is passed to the verifier."""

    def sample(step: EnumeratedStep) -> Draft:
        draft = sample_draft(step)
        changed = {
            node: Proposal(as_row(change(tuple(q.probs))), q.replacement) for node, q in draft.q.items()
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
    qs = [draft.q[parent].probs for parent in draft.parents.tolist()]
    probs = [float(q[token]) for q, token in zip(qs, draft.tokens.tolist(), strict=True)]
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


# --- verifiers with one wrong line


def with_last_token(change: Callable[[Forest, Any, int, int], Any]) -> Verifier:
    """`rejection_sample`, but the next token is sampled from change(forest, p, root, last row)."""

    def verify(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
        verdicts = rejection_sample(forest, p, u, v)
        last = [
            int(root) + (verdict.accepted[-1] + 1 if verdict.accepted else 0)
            for root, verdict in zip(forest.roots, verdicts, strict=True)
        ]
        weights = np.stack(
            [change(forest, p, int(root), row) for root, row in zip(forest.roots, last, strict=True)]
        )
        tokens = sample_inverse_cdf(weights, v)
        return [
            replace(verdict, next_token=int(token)) for verdict, token in zip(verdicts, tokens, strict=True)
        ]

    return verify


def resample_from_p(forest: Forest, p: Any, root: int, row: int) -> Any:
    """The recovered token is sampled from p, not from the residual."""
    return p[row]


def bonus_from_previous_row(forest: Forest, p: Any, root: int, row: int) -> Any:
    """The bonus token is sampled from the row before."""
    if forest.first_child[row] == NONE and row != root:
        return p[forest.parent[row]]
    siblings = SiblingVerifier(forest, np.array([row]), p[row : row + 1].copy())
    if forest.first_child[row] != NONE:
        siblings._subtract_rejected(np.array([0]), forest.first_child[[row]])
    return siblings.p[0]


def accept_rejected_token(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
    """The first rejected token is accepted too, and the next token is sampled from its residual."""
    verdicts = rejection_sample(forest, p, u, v)
    changed = []
    for root, verdict in zip(forest.roots.tolist(), verdicts, strict=True):
        last = root + (verdict.accepted[-1] + 1 if verdict.accepted else 0)
        rejected = int(forest.first_child[last])
        extra = () if rejected == NONE else (rejected - root - 1,)
        changed.append(Verdict(verdict.accepted + extra, verdict.next_token))
    return changed


def accept_by_argmax(u: Any, p_x: Any, q_x: Any, p_mass: Any = 1, q_mass: Any = 1) -> Any:
    """A draft token is accepted if its p is at least one half, regardless of u."""
    return p_x * 2 >= p_mass


def accept_by_swapped_ratio(u: Any, p_x: Any, q_x: Any, p_mass: Any = 1, q_mass: Any = 1) -> Any:
    """min(1, q/p) in place of min(1, p/q)."""
    return u * p_x * q_mass < q_x * p_mass


def _verify_siblings_against_full_p(self: SiblingVerifier, at: Any, nodes: Any, u: Any) -> Any:
    """All siblings are tested against the full p; only the next token comes from the residual."""
    full_p = arrays.read_each_row(self.full_p, self.rows[at])  # type: ignore[attr-defined]
    p_x = np.array(
        [row[token] for row, token in zip(full_p, self.forest.tokens[nodes], strict=True)], dtype=object
    )
    accepted = accepts(u[nodes], p_x, self.forest.q_of_tokens(nodes))
    rejected = np.flatnonzero(~accepted)
    if rejected.size:
        self._subtract_rejected(at[rejected], nodes[rejected])
    return accepted


def siblings_against_full_p(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
    """`rejection_sample` with `_verify_siblings_against_full_p`, which needs the original p."""
    with (
        patched(SiblingVerifier, "_verify_siblings", _verify_siblings_against_full_p),
        patched(SiblingVerifier, "full_p", p),
    ):
        return rejection_sample(forest, p, u, v)


def ignore_earlier_siblings(self: Forest, nodes: Any) -> Any:
    """Sampling without replacement is treated as sampling with replacement."""
    return np.array([], dtype=np.int64), np.array([], dtype=np.int64)


def residual_without_weight(p: Any, q: Any, p_mass: Any, q_mass: Any) -> Any:
    """`block_verify` with the residual of `rejection_sample`: max(p - q, 0), without the prefix weight."""
    return arrays.clamp_to_positive(p - arrays.stack(q))


def mass_without_weight(p: Any, q: Any, p_mass: Any, q_mass: Any) -> Any:
    """`block_verify` with an acceptance test that takes every prefix weight as 1."""
    return residual_mass(p, q, p_mass, p_mass)


def reject_at_temperature_zero(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
    """Temperature 0, but draft tokens are verified with the probabilities before temperature."""
    return rejection_sample(forest, _unwarped(p), u, v)


def _unwarped(p: Any) -> Any:
    """A point mass with a third of its mass spread uniformly, like the model's own probabilities."""
    return p * Fraction(2, 3) + Fraction(1, 3) / p.shape[1]


def _mutant(
    name: str, shapes: tuple[TreeShape, ...], flavours: tuple[str, ...] = ("generic",), **parts: Any
) -> AuditedVerifier:
    """A lossless verifier with these parts replaced."""
    return AuditedVerifier(
        name, replace(StepModel(rejection_sample, sample_draft), **parts), shapes, flavours
    )


ONE, TWO = CHAINS[:1], CHAINS[1:2]
MUTANTS = (
    _mutant("resample with the draft noise", ONE, share_noise=resample_with_draft_noise),
    _mutant("resample with the acceptance noise", ONE, share_noise=resample_with_acceptance_noise),
    _mutant("accept with the draft noise", ONE, share_noise=accept_with_draft_noise),
    _mutant(
        "reuse noise that block_verify has tested", TWO, verify=block_verify, carry_noise=noise_of_unverified
    ),
    _mutant("report a q of another temperature", ONE, draft=report_another_q(halfway_to_uniform)),
    _mutant("sample q in low precision, verify in high", ONE, draft=sample_in_low_precision),
    _mutant("sample a truncated q, verify the full q", ONE, draft=sample_truncated),
    _mutant("accept by ratio at temperature 0", ONE, ("greedy",), verify=reject_at_temperature_zero),
    _mutant(
        "accept by argmax at temperature > 0",
        ONE,
        verify=with_patched(rejection_sample, rejection_module, "accepts", accept_by_argmax),
    ),
    _mutant(
        "swap p and q in the ratio",
        ONE,
        verify=with_patched(rejection_sample, rejection_module, "accepts", accept_by_swapped_ratio),
    ),
    _mutant("truncate the draft by a token value", TWO, draft=truncate_by_value),
    _mutant("prune sampled draft tokens", TWO, draft=prune_sampled_tokens),
    _mutant("sample two, keep the more likely", ONE, draft=keep_most_likely_sample),
    _mutant("merge equal sampled siblings", PAIRS, draft=merge_equal_siblings),
    _mutant("sort sampled siblings", PAIRS, draft=sort_siblings),
    _mutant(
        "verify siblings against the full p",
        PAIRS,
        verify=siblings_against_full_p,
    ),
    _mutant(
        "ignore sampling without replacement",
        PAIRS_WITHOUT,
        verify=with_patched(rejection_sample, Forest, "earlier_sampled_siblings", ignore_earlier_siblings),
    ),
    _mutant("resample from p", ONE, verify=with_last_token(resample_from_p)),
    _mutant("sample the bonus token one row early", ONE, verify=with_last_token(bonus_from_previous_row)),
    _mutant("accept the rejected draft token", ONE, verify=accept_rejected_token),
    _mutant(
        "block_verify residual without weights",
        TWO,
        verify=with_patched(block_verify, block_module, "residual", residual_without_weight),
    ),
    _mutant(
        "block_verify test without weights",
        TWO,
        verify=with_patched(block_verify, block_module, "residual_mass", mass_without_weight),
    ),
)


def catch(mutant: AuditedVerifier) -> Claim:
    """Whether the enumeration distinguishes the mutant from the target."""
    return _caught(prove(mutant))


def _caught(row: Claim) -> Claim:
    """A mutant is caught if its claim does not hold."""
    return replace(row, kind=ClaimKind.MUTANT, held=not row.held)


def lenient_twice(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
    """Lenience 1/2 applied twice, which breaks the bound of lenience 1/2."""
    return with_lenience(Fraction(1, 4))(forest, p, u, v)


def catch_bound() -> Claim:
    """Whether a violation of the lenience bound is caught."""
    return _caught(prove_bound("lenient beyond its bound", lenient_twice, Fraction(1, 2)))
