"""`forerun audit greedy` and `forerun audit seeded`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.audit.show import (
    REQUESTS,
    SERVERS,
    TEST,
    ApiKey,
    AsJson,
    Candidate,
    DialectName,
    Epsilon,
    ErrorRate,
    Model,
    NumPrompts,
    Output,
    Prompts,
    Timeout,
    check_page,
    finish,
    is_url,
    server_connections,
)
from forerun.cli.console import progress_bar

if TYPE_CHECKING:
    from forerun.audit.parity.answer_pairs import AnswerPair, AnswerSource
    from forerun.audit.parity.run import RoundingAllowance
    from forerun.models.reference import Reference
    from forerun.servers.endpoint import Endpoint, Prompt
    from forerun.types import SamplingParams

ReferenceModel = Annotated[
    str | None,
    typer.Option(
        "--reference",
        metavar="MODEL",
        help="The model's directory: float32 logits classify differences.",
        rich_help_panel=TEST,
    ),
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens per output.", rich_help_panel=REQUESTS)]
Concurrency = Annotated[
    int, typer.Option(min=1, max=64, help="Requests in flight.", rich_help_panel=REQUESTS)
]


def greedy(
    baseline: Annotated[
        str,
        typer.Option(
            metavar="URL|MODEL",
            help="The same server without speculation (URL or host:port), or the model's directory.",
            rich_help_panel=SERVERS,
        ),
    ],
    candidate: Candidate,
    reference: ReferenceModel = None,
    prompts: Prompts = None,
    num_prompts: NumPrompts = None,
    max_tokens: MaxTokens = 64,
    precision: Annotated[
        str | None,
        typer.Option(
            help="The servers' dtype: bfloat16, float16 or float32.",
            show_default="the dtype in the model's configuration",
            rich_help_panel=TEST,
        ),
    ] = None,
    baseline_precision: Annotated[
        str | None, typer.Option(help="The baseline's dtype, if it differs.", rich_help_panel=TEST)
    ] = None,
    bound: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Logit gaps up to this are near-ties.",
            show_default="measured for the dtype",
            rich_help_panel=TEST,
        ),
    ] = None,
    concurrency: Concurrency = 1,
    model: Model = None,
    api_key: ApiKey = "none",
    dialect: DialectName = None,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Compare outputs at temperature 0 token by token, and classify every first difference.

    In float32, speculation leaves every token identical. In bfloat16 and float16, rounding depends on the
    shape of a batch, and two tokens whose logits are nearly equal can swap: a near-tie. The audit calls a
    difference a near-tie if the gap of the two logits, in float32, is within the rounding error of the
    servers' dtype. Any other difference is a fault.

    Exit code 0: identical, or near-ties only (the verdict names which). 1: a difference. 2: no verdict, also
    after Ctrl-C.

    Example: forerun audit greedy --baseline localhost:8001 --candidate localhost:8000 --reference ./model
    """
    from forerun.audit.parity.answer_pairs import request_pairs, server_source
    from forerun.audit.parity.near_ties import NearTieReferee
    from forerun.audit.parity.run import compare_greedy
    from forerun.audit.prompts import read_prompts
    from forerun.servers.endpoint import fault_notes
    from forerun.types import SamplingParams

    with server_connections(model, api_key, dialect, timeout) as connect:
        check_page(output)
        loaded = read_prompts(prompts, num_prompts)
        candidate_server = connect(candidate)
        baseline_server = connect(baseline) if is_url(baseline) else None
        name = reference or (baseline if baseline_server is None else None)
        reference_model = None if name is None else _load(name)
        referee, precisions = None, None
        if reference_model is not None:
            served = precision or str(reference_model.own_dtype).removeprefix("torch.")
            other = baseline_precision or ("float32" if baseline_server is None else served)
            precisions = {"baseline": other, "candidate": served}
            referee = NearTieReferee(reference_model, [other, served], bound)
        prompts_with_ids = _with_token_ids(loaded, reference_model)
        requests = [(each, SamplingParams(temperature=0.0)) for each in prompts_with_ids]
        source = (
            _greedy_source(reference_model) if baseline_server is None else server_source(baseline_server)
        )
        with progress_bar("comparing", len(requests)) as progress:
            pairs = request_pairs(requests, source, server_source(candidate_server), max_tokens, concurrency)
            report = compare_greedy(pairs, referee, progress)
        report = replace(
            report,
            notes=(*report.notes, *fault_notes(candidate_server, baseline_server)),
            question={
                "baseline": baseline,
                "candidate": candidate,
                "model": candidate_server.model,
                "reference": name,
                "precision": precisions,
                "max_tokens": max_tokens,
                "concurrency": concurrency,
            },
        )
        finish(report, as_json=as_json, page=output)


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
    differ. The audit reports a difference if outputs differ more often than rounding explains.

    Exit code 0: identical, or no more differences than rounding explains. 1: a difference. 2: no verdict,
    also after Ctrl-C.

    Example: forerun audit seeded --baseline localhost:8001 --candidate localhost:8000 --num-seeds 8
    """
    from forerun.audit.parity.answer_pairs import request_pairs, server_source
    from forerun.audit.parity.divergence_rate import can_emit
    from forerun.audit.parity.run import compare_seeded
    from forerun.audit.prompts import read_prompts
    from forerun.audit.sampled.against_model import TokenReader
    from forerun.servers.endpoint import fault_notes
    from forerun.types import SamplingParams

    with server_connections(model, api_key, dialect, timeout) as connect:
        check_page(output)
        loaded = read_prompts(prompts, num_prompts)
        candidate_server = connect(candidate)
        baseline_server = connect(baseline)
        reference_model = None if reference is None else _load(reference)
        sampling = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k)
        repeated = _with_token_ids(loaded, reference_model) * num_seeds
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


def _load(name: str) -> Reference:
    from rich.console import Console

    from forerun.models.reference import Reference

    with Console(stderr=True).status("loading the reference model"):
        return Reference(name)


def _with_token_ids(prompts: list[Prompt], model: Reference | None) -> list[Prompt]:
    """The prompts with token ids, if there is a reference model."""
    from forerun.audit.sampled.prepare import with_token_ids

    return prompts if model is None else [with_token_ids(each, model) for each in prompts]


def _greedy_source(model: Reference | None) -> AnswerSource:
    """Greedy outputs of the reference model."""
    from forerun.servers.endpoint import END, Completion

    assert model is not None

    def generate(prompt: Prompt, _: SamplingParams, max_tokens: int) -> Completion:
        tokens = model.greedy(prompt.ids, max_tokens)
        ended = len(tokens) < max_tokens
        return Completion((*tokens, END) if ended else tuple(tokens), prompt_ids=prompt.ids)

    return generate
