"""`forerun audit seeded`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.audit.options import (
    REQUESTS,
    SERVERS,
    ApiKey,
    AsJson,
    Candidate,
    Concurrency,
    DialectName,
    Epsilon,
    ErrorRate,
    Invariant,
    MaxTokens,
    Model,
    NumPrompts,
    Output,
    Prompts,
    ReferenceModel,
    Timeout,
)
from forerun.cli.audit.servers import load_reference, server_connections, with_token_ids
from forerun.cli.audit.show import check_page, finish
from forerun.cli.console import progress_bar

if TYPE_CHECKING:
    from forerun.audit.parity.answer_pairs import AnswerPair
    from forerun.audit.parity.run import RoundingAllowance
    from forerun.servers.completions import Prompt
    from forerun.servers.endpoint import Endpoint


def seeded(
    baseline: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="The same server without speculation: a URL or host:port.",
            rich_help_panel=SERVERS,
        ),
    ],
    candidate: Candidate,
    reference: ReferenceModel = None,
    prompts: Prompts = None,
    num_prompts: NumPrompts = None,
    max_tokens: MaxTokens = 64,
    num_seeds: Annotated[int, typer.Option(min=1, help="Seeds per prompt.", rich_help_panel=REQUESTS)] = 4,
    temperature: Annotated[
        float, typer.Option(min=0.01, help="Of both servers.", rich_help_panel=REQUESTS)
    ] = 0.8,
    top_p: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Of both servers.", rich_help_panel=REQUESTS)
    ] = 0.95,
    top_k: Annotated[
        int, typer.Option(min=0, help="Of both servers; 0 is all tokens.", rich_help_panel=REQUESTS)
    ] = 0,
    error_rate: ErrorRate = 0.05,
    epsilon: Epsilon = None,
    invariant: Invariant = False,
    concurrency: Concurrency = 1,
    model: Model = None,
    api_key: ApiKey = "none",
    dialect: DialectName = None,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Compare outputs sampled with the same seeds, for servers that promise identical tokens.

    Rounding shifts distributions slightly, in bfloat16 and float16 more than in float32, so a few outputs may
    differ. The audit reports a difference if outputs differ more often than rounding explains; with
    --invariant, if any output differs.

    Exit code 0: identical, or no more differences than rounding explains. 1: a difference. 2: no verdict,
    also after Ctrl-C.

    Example: forerun audit seeded --baseline localhost:8001 --candidate localhost:8000 --num-seeds 8
    """
    from forerun.audit.parity.answer_pairs import request_pairs, server_source
    from forerun.audit.parity.divergence_rate import can_emit
    from forerun.audit.parity.run import compare_identical, compare_seeded
    from forerun.audit.prompts import read_prompts
    from forerun.audit.sampled.against_model import TokenReader
    from forerun.servers.endpoint import fault_notes
    from forerun.types import SamplingParams

    with server_connections(model, api_key, dialect, timeout) as connect:
        check_page(output)
        loaded = read_prompts(prompts, num_prompts)
        candidate_server = connect(candidate)
        baseline_server = connect(baseline)
        reference_model = None if reference is None else load_reference(reference)
        sampling = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k)
        repeated = with_token_ids(loaded, reference_model) * num_seeds
        requests = [(prompt, replace(sampling, seed=seed)) for seed, prompt in enumerate(repeated)]
        sources = server_source(baseline_server), server_source(candidate_server)
        with progress_bar("comparing", len(requests)) as progress:
            pairs = request_pairs(requests, *sources, max_tokens, concurrency)
            possible = (
                None
                if reference_model is None
                else partial(can_emit, reference_model, TokenReader(reference_model))
            )
            allowance = _allowance(baseline_server, epsilon)
            if invariant:
                report = compare_identical("seeded", pairs, progress)
            else:
                report = compare_seeded(pairs, allowance, possible, error_rate, progress)
        report = replace(
            report,
            notes=(*report.notes, *fault_notes(candidate_server, baseline_server)),
            question={
                "baseline": baseline,
                "candidate": candidate,
                "model": candidate_server.model,
                "reference": reference,
                "max_tokens": max_tokens,
                "num_seeds": num_seeds,
                "settings": candidate_server.dialect.settings(sampling),
                "concurrency": concurrency,
                "invariant": invariant,
            },
        )
        finish(report, as_json=as_json, page=output)


def _allowance(baseline: Endpoint, epsilon: float | None) -> RoundingAllowance:
    """The rounding to allow: epsilon as given, or measured on the baseline's log-probabilities."""
    from forerun.audit.rounding_error import ServerRounding, measure_server

    measured: dict[Prompt, ServerRounding] = {}

    def allowed(pair: AnswerPair) -> tuple[float, float]:
        if epsilon is not None:
            return epsilon, epsilon
        if pair.prompt not in measured:
            measured[pair.prompt] = measure_server(baseline, pair.prompt, 4, 1)
        rounding = measured[pair.prompt]
        return rounding.sigma, rounding.epsilon(pair.sampling)

    return allowed
