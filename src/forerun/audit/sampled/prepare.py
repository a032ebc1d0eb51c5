"""From cases to rows that can be asked: prompts as token ids, and how much rounding each is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from forerun.audit.rounding_error import OwnError, error_against_model, error_of_server
from forerun.audit.sampled.against_model import AgainstModel, TokenReader
from forerun.audit.sampled.against_server import AgainstServer
from forerun.audit.sampled.distance import looks, samples_to_bound
from forerun.audit.sampled.positions import Positions
from forerun.audit.sampled.run import CaseRun, SamplingPlan
from forerun.audit.sampled.sweep import SweepCase
from forerun.servers.endpoint import Endpoint, Prompt
from forerun.types import SamplingParams

if TYPE_CHECKING:
    from forerun.models.reference import Reference

_FEW: Final = 16
"""A top-k of at most so many tokens leaves few enough pairs for a bound to say something."""


def against_model(
    cases: Sequence[SweepCase],
    plain: Endpoint,
    model: Reference,
    plan: SamplingPlan,
    epsilon: float | None = None,
) -> list[CaseRun]:
    """Rows to be held against the reference; rounding is measured on `plain`, in answers of one token."""
    read = TokenReader(model)
    sigmas: dict[Prompt, float] = {}
    rows = []
    for case in cases:
        prompt = with_ids(case.prompt, model)
        if prompt not in sigmas:
            sigmas[prompt] = 0.0 if epsilon is not None else _measure(plain, prompt, model)
        places = Positions(model, prompt.ids, case.sampling, sigma=sigmas[prompt], epsilon=epsilon)
        judge = AgainstModel(places, read, plan.num_bounded)
        share = plan.error_rate / len(cases)
        chances = places.chances(plan.num_bounded)
        planned = None if chances is None else samples_to_bound(chances, plan.target, share)
        if planned is not None and planned > plan.most_samples:
            planned = None
        rows.append(
            CaseRun(
                case=replace(case, prompt=prompt),
                judge=judge,
                planned=planned or plan.num_samples,
                bounded=planned is not None,
                looks=looks(share, planned or plan.num_samples),
            )
        )
    return rows


def _measure(plain: Endpoint, prompt: Prompt, model: Reference) -> float:
    """sigma after a prompt and along its two likeliest continuations."""
    if not plain.dialect.takes_ids:
        paths: list[tuple[int, ...]] = [()]
    else:
        first = model.after(prompt.ids, [()])[0].topk(2).indices.tolist()
        paths = [(), *((token,) for token in first)]
        for _ in range(2):
            likeliest = model.after(prompt.ids, paths[-2:]).argmax(-1).tolist()
            paths += [(*path, token) for path, token in zip(paths[-2:], likeliest, strict=True)]
    return error_against_model(plain, prompt, paths, model.after(prompt.ids, paths))


def against_server(
    cases: Sequence[SweepCase], baseline: Endpoint, plan: SamplingPlan, epsilon: float | None = None
) -> list[CaseRun]:
    """Rows to be held against a plain server, whose own log-probabilities say how much it rounds."""
    measured: dict[Prompt, OwnError] = {}
    rows = []
    for case in cases:
        if case.prompt not in measured:
            choices = plan.choices or baseline.dialect.choices
            measured[case.prompt] = (
                error_of_server(baseline, case.prompt, plan.num_tokens, choices)
                if epsilon is None
                else OwnError(0.0, (), _ids_of(baseline, case.prompt))
            )
        own = measured[case.prompt]
        judge = AgainstServer(
            own.prompt_ids,
            own.epsilon(case.sampling) if epsilon is None else epsilon,
            plan.num_bounded,
        )
        rows.append(
            CaseRun(
                case=case,
                judge=judge,
                planned=plan.num_samples,
                bounded=0 < case.sampling.top_k <= _FEW,
                looks=looks(plan.error_rate / len(cases), plan.num_samples),
            )
        )
    return rows


def _ids_of(server: Endpoint, prompt: Prompt) -> tuple[int, ...]:
    """The prompt's token ids, if the server tells them."""
    return prompt.ids or server.complete(prompt, SamplingParams(), 1)[0].prompt_ids


def with_ids(prompt: Prompt, model: Reference) -> Prompt:
    """The prompt as the reference's token ids."""
    return prompt if prompt.ids else replace(prompt, ids=tuple(model.encode(prompt.text)))
