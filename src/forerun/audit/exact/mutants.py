"""Sabotaged speculation that the enumeration must catch.

Some are defects that public engines shipped. Each changes one thing: how drafts are drawn or reported, which
numbers are shared, or a line of the production verifier (replaced for the length of the run).
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
    Claim,
    ClaimKind,
    Subject,
    lenient_by,
    noise_of_dropped,
    prove,
    prove_bound,
)
from forerun.audit.exact.enumeration import (
    EnumeratedStep,
    StepModel,
    Verifier,
    draw,
    draw_tokens,
    replaced,
    with_replaced,
)
from forerun.audit.exact.toy_models import CHAINS, ExactDistribution, TreeShape, as_row, trees
from forerun.control.candidates import Candidates
from forerun.control.controller import Controller
from forerun.control.step_cost import StepCost
from forerun.core import arrays
from forerun.core import block_verification as block_module
from forerun.core import rejection_sampling as reject_module
from forerun.core.acceptance import accepts, residual_mass, sample_inverse_cdf
from forerun.core.block_verification import block_verify
from forerun.core.draft_forest import NONE, Forest
from forerun.core.rejection_sampling import SiblingVerifier, rejection_sample
from forerun.types import Draft, Proposal, Verdict

PAIRS = trees(replacement=True)[:2]
PAIRS_WITHOUT = trees(replacement=False)[:2]


# --- numbers that are shared and should not be


def resample_with_draft_noise(play: EnumeratedStep) -> None:
    """The correction is drawn with the number that drew the guess."""
    play.picker = play.drawn[0] if play.drawn else play.picker


def resample_with_judge_noise(play: EnumeratedStep) -> None:
    """The correction is drawn with the number that refused the guess."""
    play.picker = play.judges[1]


def judge_with_draft_noise(play: EnumeratedStep) -> None:
    """The guess is judged by the number that drew it."""
    play.judges[1] = play.drawn[0] if play.drawn else play.judges[1]


# --- drafts that are drawn or reported wrongly


def report_another_q(
    change: Callable[[ExactDistribution], ExactDistribution],
) -> Callable[[EnumeratedStep], Draft]:
    """The draft is drawn from one q and another is handed to the verifier."""

    def drawing(play: EnumeratedStep) -> Draft:
        draft = draw_tokens(play)
        changed = {
            node: Proposal(as_row(change(tuple(q.probs))), q.replacement) for node, q in draft.q.items()
        }
        return replace(draft, q=changed)

    return drawing


def halfway_to_uniform(law: ExactDistribution) -> ExactDistribution:
    """Another temperature: every probability halfway to uniform."""
    return tuple((q_x + Fraction(1, len(law))) / 2 for q_x in law)


def to_eighths(law: ExactDistribution) -> ExactDistribution:
    """Low precision: rounded to eighths, at least one, and normalised."""
    rounded = [max(1, round(q_x * 8)) for q_x in law]
    return tuple(Fraction(r, sum(rounded)) for r in rounded)


def draw_in_low_precision(play: EnumeratedStep) -> Draft:
    """The draft is drawn from a rounded q and judged by the precise one."""
    q = play.world.q(play.prefix)
    play.drawn.append(u := play.fresh())
    return Draft.chain([draw(to_eighths(q), u)], q=[Proposal(as_row(q))])


def draw_truncated(play: EnumeratedStep) -> Draft:
    """The draft is drawn from a truncated q (its least likely token never) and judged by the raw one."""
    q = play.world.q(play.prefix)
    lowest = q.index(min(q))
    play.drawn.append(u := play.fresh())
    truncated = [Fraction(0) if x == lowest else q_x for x, q_x in enumerate(q)]
    return Draft.chain([draw(truncated, u)], q=[Proposal(as_row(q))])


def merge_equal_siblings(play: EnumeratedStep) -> Draft:
    """Equal tokens drawn twice become one node."""
    draft = draw_tokens(play)
    if len(draft) == 1 or draft.tokens[0] != draft.tokens[1]:
        return draft
    keep = np.array([0, *range(2, len(draft))], dtype=np.int64)
    parents = np.array([parent if parent <= 0 else parent - 1 for parent in draft.parents[keep].tolist()])
    return replace(draft, tokens=draft.tokens[keep], parents=parents, sampled=draft.sampled[keep])


def sort_siblings(play: EnumeratedStep) -> Draft:
    """Sampled siblings are put in order of their token."""
    draft = draw_tokens(play)
    tokens = draft.tokens.copy()
    tokens[:2] = np.sort(tokens[:2])
    return replace(draft, tokens=tokens)


def drop_by_value(play: EnumeratedStep) -> Draft:
    """The chain ends before the first token 0, as if it were not worth verifying."""
    draft = draw_tokens(play)
    zeros = np.flatnonzero(draft.tokens == 0)
    return _shortened(draft, int(zeros[0])) if zeros.size else draft


def prune_what_was_drawn(play: EnumeratedStep) -> Draft:
    """The controller takes drawn guesses for chosen ones: as likely as q says, and dropped where they do not
    pay.
    """
    draft = draw_tokens(play)
    if not draft.sampled.all():
        return draft
    drawn_from = [draft.q[parent].probs for parent in draft.parents.tolist()]
    chances = [float(q[token]) for q, token in zip(drawn_from, draft.tokens.tolist(), strict=True)]
    controller = Controller(StepCost((1, 2), (1.0, 1.5), doubt=0.0))
    controller.admit("drawn", greedy=False)
    step = controller.begin_step(["drawn"], rows=1)
    guesses = replace(
        Candidates.of([draft], partial(controller.kind, step)),
        stated=np.array(list(accumulate(chances, mul)), dtype=np.float64),
        fixed=np.zeros(len(draft), dtype=bool),
    )
    return _shortened(draft, int(controller.choose(step, guesses).sum()))


def keep_the_likelier(play: EnumeratedStep) -> Draft:
    """Two guesses are drawn, and the one q favours is kept as if it had been drawn alone."""
    q = play.world.q(play.prefix)
    play.drawn.extend([play.fresh(), play.fresh()])
    token = max((draw(q, u) for u in play.drawn), key=lambda x: q[x])
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


# --- verifiers with one line wrong


def with_last_token(change: Callable[[Forest, Any, int, int], Any]) -> Verifier:
    """`reject`, but the last token is drawn from other weights: change(forest, p, root, last row)."""

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


def from_p_again(forest: Forest, p: Any, root: int, row: int) -> Any:
    """The correction comes from p, not from what the refused guess left of it."""
    return p[row]


def bonus_from_the_row_before(forest: Forest, p: Any, root: int, row: int) -> Any:
    """When all guesses stand, the bonus token is drawn one row too early."""
    if forest.first_child[row] == NONE and row != root:
        return p[forest.parent[row]]
    crossing = SiblingVerifier(forest, np.array([row]), p[row : row + 1].copy())
    if forest.first_child[row] != NONE:
        crossing._take_out(np.array([0]), forest.first_child[[row]])
    return crossing.p[0]


def keep_the_refused(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
    """The first refused guess is kept too, and the token after it is drawn from what it left."""
    verdicts = rejection_sample(forest, p, u, v)
    kept = []
    for root, verdict in zip(forest.roots.tolist(), verdicts, strict=True):
        last = root + (verdict.accepted[-1] + 1 if verdict.accepted else 0)
        refused = int(forest.first_child[last])
        extra = () if refused == NONE else (refused - root - 1,)
        kept.append(Verdict(verdict.accepted + extra, verdict.next_token))
    return kept


def stand_by_argmax(u: Any, p_x: Any, q_x: Any, p_mass: Any = 1, q_mass: Any = 1) -> Any:
    """A guess stands if p favours it, whatever the dice say."""
    return p_x * 2 >= p_mass


def stand_by_swapped_ratio(u: Any, p_x: Any, q_x: Any, p_mass: Any = 1, q_mass: Any = 1) -> Any:
    """min(1, q/p) in place of min(1, p/q)."""
    return u * p_x * q_mass < q_x * p_mass


def judge_by_all_of_p(self: SiblingVerifier, at: Any, guesses: Any, u: Any) -> Any:
    """Siblings are all judged against the whole of p; only the last token comes from what is left."""
    whole = arrays.read_each_row(self.whole, self.rows[at])  # type: ignore[attr-defined]
    p_x = np.array(
        [row[token] for row, token in zip(whole, self.forest.tokens[guesses], strict=True)], dtype=object
    )
    standing = accepts(u[guesses], p_x, self.forest.q_of(guesses))
    refused = np.flatnonzero(~standing)
    if refused.size:
        self._take_out(at[refused], guesses[refused])
    return standing


def judging_siblings_by_all_of_p(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
    """`reject` with that judge, which needs p as it was."""
    with replaced(SiblingVerifier, "_judge", judge_by_all_of_p), replaced(SiblingVerifier, "whole", p):
        return rejection_sample(forest, p, u, v)


def nothing_drawn_before(self: Forest, guesses: Any) -> Any:
    """Draws without replacement are taken for draws with it."""
    return np.array([], dtype=np.int64), np.array([], dtype=np.int64)


def residual_without_weight(p: Any, q: Any, p_mass: Any, q_mass: Any) -> Any:
    """`block` with the residual of `reject`: max(p - q, 0), whatever the prefix weighs."""
    return arrays.clamp_to_positive(p - arrays.stack(q))


def mass_without_weight(p: Any, q: Any, p_mass: Any, q_mass: Any) -> Any:
    """`block` with a test that takes every prefix to weigh 1."""
    return residual_mass(p, q, p_mass, p_mass)


def greedy_by_ratio(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
    """Temperature 0, but guesses are judged by the ratio of the probabilities before it."""
    return rejection_sample(forest, _raw(p), u, v)


def _raw(p: Any) -> Any:
    """A point mass with a third of it spread out, as the model's own probabilities are."""
    return p * Fraction(2, 3) + Fraction(1, 3) / p.shape[1]


def _mutant(
    name: str, shapes: tuple[TreeShape, ...], flavours: tuple[str, ...] = ("generic",), **parts: Any
) -> Subject:
    """An honest engine but for these parts."""
    return Subject(name, replace(StepModel(rejection_sample, draw_tokens), **parts), shapes, flavours)


ONE, TWO = CHAINS[:1], CHAINS[1:2]
MUTANTS = (
    _mutant("resample with the draft's noise", ONE, share=resample_with_draft_noise),
    _mutant("resample with the judge's noise", ONE, share=resample_with_judge_noise),
    _mutant("judge with the draft's noise", ONE, share=judge_with_draft_noise),
    _mutant("redraw with noise block has seen", TWO, verify=block_verify, carry=noise_of_dropped),
    _mutant("report a q of another temperature", ONE, draw=report_another_q(halfway_to_uniform)),
    _mutant("draw in low precision, judge in high", ONE, draw=draw_in_low_precision),
    _mutant("draw truncated, judge by the raw q", ONE, draw=draw_truncated),
    _mutant("judge by ratio at temperature 0", ONE, ("greedy",), verify=greedy_by_ratio),
    _mutant(
        "accept by argmax at temperature > 0",
        ONE,
        verify=with_replaced(rejection_sample, reject_module, "accepts", stand_by_argmax),
    ),
    _mutant(
        "swap p and q in the ratio",
        ONE,
        verify=with_replaced(rejection_sample, reject_module, "accepts", stand_by_swapped_ratio),
    ),
    _mutant("cut the draft by a dropped value", TWO, draw=drop_by_value),
    _mutant("prune what was drawn", TWO, draw=prune_what_was_drawn),
    _mutant("draw two, keep the likelier", ONE, draw=keep_the_likelier),
    _mutant("merge equal sampled siblings", PAIRS, draw=merge_equal_siblings),
    _mutant("sort sampled siblings", PAIRS, draw=sort_siblings),
    _mutant(
        "judge siblings against all of p",
        PAIRS,
        verify=judging_siblings_by_all_of_p,
    ),
    _mutant(
        "forget that draws were not replaced",
        PAIRS_WITHOUT,
        verify=with_replaced(rejection_sample, Forest, "earlier_sampled_siblings", nothing_drawn_before),
    ),
    _mutant("resample from p", ONE, verify=with_last_token(from_p_again)),
    _mutant("draw the bonus a row too early", ONE, verify=with_last_token(bonus_from_the_row_before)),
    _mutant("keep the refused guess", ONE, verify=keep_the_refused),
    _mutant(
        "block draws as if prefixes weighed 1",
        TWO,
        verify=with_replaced(block_verify, block_module, "residual", residual_without_weight),
    ),
    _mutant(
        "block tests as if prefixes weighed 1",
        TWO,
        verify=with_replaced(block_verify, block_module, "residual_mass", mass_without_weight),
    ),
)


def catch(subject: Subject) -> Claim:
    """Whether the enumeration tells the mutant from the target."""
    return _caught(prove(subject))


def _caught(row: Claim) -> Claim:
    """A mutant is caught where the claim it makes does not hold."""
    return replace(row, kind=ClaimKind.MUTANT, held=not row.held)


def lenient_twice(forest: Forest, p: Any, u: Any, v: Any) -> list[Verdict]:
    """Lenience 1/2 applied twice breaks the bound of lenience 1/2."""
    return lenient_by(Fraction(1, 4))(forest, p, u, v)


def catch_bound() -> Claim:
    """Whether the bound on lenient verifiers is one that can be broken."""
    return _caught(prove_bound("lenient beyond its bound", lenient_twice, Fraction(1, 2)))
