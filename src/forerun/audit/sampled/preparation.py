"""Prepares the runs of an audit: prompts as token ids, and the rounding allowed for each case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from forerun.audit.rounding_error import ServerRounding, measure_against_model, measure_server
from forerun.audit.sampled.against_model import AgainstModel, TokenReader
from forerun.audit.sampled.against_server import AgainstServer
from forerun.audit.sampled.distance import bound_schedule, samples_to_bound
from forerun.audit.sampled.positions import Positions
from forerun.audit.sampled.run import CaseRun, SamplingPlan
from forerun.audit.sampled.sweep import SweepCase
from forerun.servers.completions import Prompt
from forerun.servers.endpoint import Endpoint
from forerun.types import SamplingParams

if TYPE_CHECKING:
    from forerun.models.reference import Reference

_MAX_BOUNDED_TOP_K: Final = 16
"""A larger top-k leaves too many token pairs for an informative bound."""


def against_model(
    cases: Sequence[SweepCase],
    server: Endpoint,
    model: Reference,
    plan: SamplingPlan,
    epsilon: float | None = None,
) -> list[CaseRun]:
    """Runs against the reference model; rounding is measured on `server`, in one-token completions."""
    read = TokenReader(model)
    sigmas: dict[Prompt, float] = {}
    rows = []
    for case in cases:
        prompt = with_token_ids(case.prompt, model)
        if prompt not in sigmas:
            sigmas[prompt] = 0.0 if epsilon is not None else _measure(server, prompt, model)
        positions = Positions(model, prompt.ids, case.sampling, sigma=sigmas[prompt], epsilon=epsilon)
        test = AgainstModel(positions, read, plan.num_bounded_tokens)
        share = plan.error_rate / len(cases)
        probabilities = positions.prefix_probabilities(plan.num_bounded_tokens)
        planned = None if probabilities is None else samples_to_bound(probabilities, plan.target_bound, share)
        if planned is not None and planned > plan.max_samples:
            planned = None
        rows.append(
            CaseRun(
                case=replace(case, prompt=prompt),
                test=test,
                num_planned=planned or plan.num_samples,
                bounded=planned is not None,
                bound_schedule=bound_schedule(share, planned or plan.num_samples),
            )
        )
    return rows


def _measure(server: Endpoint, prompt: Prompt, model: Reference) -> float:
    """Sigma after a prompt and along its two most likely continuations."""
    if not server.dialect.accepts_token_ids:
        paths: list[tuple[int, ...]] = [()]
    else:
        first = model.after(prompt.ids, [()])[0].topk(2).indices.tolist()
        paths = [(), *((token,) for token in first)]
        for _ in range(2):
            most_likely = model.after(prompt.ids, paths[-2:]).argmax(-1).tolist()
            paths += [(*path, token) for path, token in zip(paths[-2:], most_likely, strict=True)]
    return measure_against_model(server, prompt, paths, model.after(prompt.ids, paths))


def against_server(
    cases: Sequence[SweepCase], baseline: Endpoint, plan: SamplingPlan, epsilon: float | None = None
) -> list[CaseRun]:
    """Runs against a baseline server; rounding is measured on its own log-probabilities."""
    measured: dict[Prompt, ServerRounding] = {}
    rows = []
    for case in cases:
        if case.prompt not in measured:
            choices = plan.choices or baseline.dialect.choices_per_request
            measured[case.prompt] = (
                measure_server(baseline, case.prompt, plan.num_tokens, choices)
                if epsilon is None
                else ServerRounding(0.0, (), _token_ids(baseline, case.prompt))
            )
        rounding = measured[case.prompt]
        test = AgainstServer(
            rounding.prompt_ids,
            rounding.epsilon(case.sampling) if epsilon is None else epsilon,
            plan.num_bounded_tokens,
        )
        rows.append(
            CaseRun(
                case=case,
                test=test,
                num_planned=plan.num_samples,
                bounded=0 < case.sampling.top_k <= _MAX_BOUNDED_TOP_K,
                bound_schedule=bound_schedule(plan.error_rate / len(cases), plan.num_samples),
            )
        )
    return rows


def _token_ids(server: Endpoint, prompt: Prompt) -> tuple[int, ...]:
    """The prompt's token ids, if the server returns them."""
    return prompt.ids or server.complete(prompt, SamplingParams(), 1)[0].prompt_ids


def with_token_ids(prompt: Prompt, model: Reference) -> Prompt:
    """The prompt with token ids of the reference's tokenizer."""
    return prompt if prompt.ids else replace(prompt, ids=tuple(model.encode(prompt.text)))
