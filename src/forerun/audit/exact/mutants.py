"""Sabotaged speculation (mutants) that the enumeration must catch.

Some are defects that public engines shipped. Each changes one thing: how draft tokens are sampled or
reported, which random numbers are shared (`draft_mutants`), or a line of the production verifier
(`verifier_mutants`), patched for the duration of the run.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from forerun.audit.exact import draft_mutants as drafting
from forerun.audit.exact import run_ahead_steps as running_ahead
from forerun.audit.exact import verifier_mutants as verifying
from forerun.audit.exact.claims import (
    AuditedVerifier,
    Claim,
    ClaimKind,
    noise_of_unverified,
    prove,
    prove_bound,
)
from forerun.audit.exact.enumeration import StepModel, sample_draft, with_patched
from forerun.audit.exact.toy_models import CHAINS, SEVERAL_MODELS, TreeShape, trees
from forerun.core import block_verification as block_module
from forerun.core import rejection_sampling as rejection_module
from forerun.core.block_verification import block_verify
from forerun.core.draft_forest import Forest
from forerun.core.rejection_sampling import rejection_sample

PAIRS = trees(replacement=True)[:2]
PAIRS_WITHOUT = trees(replacement=False)[:2]


def _mutant(
    name: str, shapes: tuple[TreeShape, ...], flavours: tuple[str, ...] = ("generic",), **parts: Any
) -> AuditedVerifier:
    """A lossless verifier with these parts replaced."""
    return AuditedVerifier(
        name, replace(StepModel(rejection_sample, sample_draft), **parts), shapes, flavours
    )


ONE, TWO = CHAINS[:1], CHAINS[1:2]
TWO_MODELS = SEVERAL_MODELS[:1]
MUTANTS = (
    _mutant("resample with the draft noise", ONE, share_noise=drafting.resample_with_draft_noise),
    _mutant("resample with the acceptance noise", ONE, share_noise=drafting.resample_with_acceptance_noise),
    _mutant("accept with the draft noise", ONE, share_noise=drafting.accept_with_draft_noise),
    _mutant("reuse noise that block_verify has tested", TWO, verify=block_verify, carry=noise_of_unverified),
    _mutant(
        "report a q of another temperature", ONE, draft=drafting.report_another_q(drafting.halfway_to_uniform)
    ),
    _mutant("sample q in low precision, verify in high", ONE, draft=drafting.sample_in_low_precision),
    _mutant("sample a truncated q, verify the full q", ONE, draft=drafting.sample_truncated),
    _mutant(
        "accept by ratio at temperature 0", ONE, ("greedy",), verify=verifying.reject_at_temperature_zero
    ),
    _mutant(
        "accept by argmax at temperature > 0",
        ONE,
        verify=with_patched(rejection_sample, rejection_module, "accepts", verifying.accept_by_argmax),
    ),
    _mutant(
        "swap p and q in the ratio",
        ONE,
        verify=with_patched(rejection_sample, rejection_module, "accepts", verifying.accept_by_swapped_ratio),
    ),
    _mutant("truncate the draft by a token value", TWO, draft=drafting.truncate_by_value),
    _mutant("prune sampled draft tokens", TWO, draft=drafting.prune_sampled_tokens),
    _mutant("sample two, keep the more likely", ONE, draft=drafting.keep_most_likely_sample),
    _mutant("merge equal sampled siblings", PAIRS, draft=drafting.merge_equal_siblings),
    _mutant("sort sampled siblings", PAIRS, draft=drafting.sort_siblings),
    _mutant("merge equal tokens of two draft models", TWO_MODELS, draft=drafting.merge_equal_siblings),
    _mutant("verify two draft models with one q", TWO_MODELS, draft=drafting.report_first_q),
    _mutant("swap the q of two draft models", TWO_MODELS, draft=drafting.swap_draft_models),
    _mutant("verify the more confident draft model first", TWO_MODELS, draft=drafting.order_by_confidence),
    _mutant(
        "use a prepared draft by its tokens",
        ONE,
        draft=running_ahead.draft_ahead,
        carry=running_ahead.prepared_if_it_begins_with_zero,
    ),
    _mutant(
        "use a draft prepared for another outcome",
        ONE,
        draft=running_ahead.draft_ahead,
        carry=running_ahead.prepared_for_another_outcome,
    ),
    _mutant(
        "prepare two drafts, keep the more likely",
        ONE,
        draft=running_ahead.draft_the_likelier_of_two,
        carry=running_ahead.prepared_for_outcome,
    ),
    _mutant("prepare with the noise of the verification", TWO, carry=running_ahead.noise_of_verification),
    _mutant(
        "verify siblings against the full p",
        PAIRS,
        verify=verifying.siblings_against_full_p,
    ),
    _mutant(
        "ignore sampling without replacement",
        PAIRS_WITHOUT,
        verify=with_patched(
            rejection_sample, Forest, "earlier_sampled_siblings", verifying.ignore_earlier_siblings
        ),
    ),
    _mutant("resample from p", ONE, verify=verifying.with_last_token(verifying.resample_from_p)),
    _mutant(
        "sample the bonus token one row early",
        ONE,
        verify=verifying.with_last_token(verifying.bonus_from_previous_row),
    ),
    _mutant("accept the rejected draft token", ONE, verify=verifying.accept_rejected_token),
    _mutant(
        "block_verify residual without weights",
        TWO,
        verify=with_patched(block_verify, block_module, "residual", verifying.residual_without_weight),
    ),
    _mutant(
        "block_verify test without weights",
        TWO,
        verify=with_patched(block_verify, block_module, "residual_mass", verifying.mass_without_weight),
    ),
)


def catch(mutant: AuditedVerifier) -> Claim:
    """Whether the enumeration distinguishes the mutant from the target."""
    return _caught(prove(mutant))


def _caught(row: Claim) -> Claim:
    """A mutant is caught if its claim does not hold."""
    return replace(row, kind=ClaimKind.MUTANT, held=not row.held)


def catch_bound() -> Claim:
    """Whether a violation of the lenience bound is caught."""
    return _caught(prove_bound("lenient beyond its bound", verifying.lenient_twice, Fraction(1, 2)))
