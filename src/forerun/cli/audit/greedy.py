"""`forerun audit greedy`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.audit.options import (
    SERVERS,
    TEST,
    ApiKey,
    AsJson,
    Candidate,
    Concurrency,
    DialectName,
    Invariant,
    MaxTokens,
    Model,
    NumPrompts,
    Output,
    Prompts,
    ReferenceModel,
    Timeout,
)
from forerun.cli.audit.servers import is_url, load_reference, server_connections, with_token_ids
from forerun.cli.audit.show import check_page, finish
from forerun.cli.console import progress_bar

if TYPE_CHECKING:
    from forerun.audit.parity.answer_pairs import AnswerSource
    from forerun.models.reference import Reference
    from forerun.servers.completions import Completion, Prompt
    from forerun.types import SamplingParams


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
    invariant: Invariant = False,
    concurrency: Concurrency = 1,
    model: Model = None,
    api_key: ApiKey = "none",
    dialect: DialectName = None,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Compare outputs at temperature 0 token by token, and classify every first difference.

    In float32, speculation leaves every token identical. In bfloat16 and float16, unless the server runs in
    invariant mode, rounding depends on the shape of a batch, and two tokens whose logits are nearly equal can
    swap: a near-tie. The audit calls a difference a near-tie if the gap of the two logits, in float32, is
    within the rounding error of the servers' dtype. Any other difference is a fault; with --invariant, every
    difference is.

    Exit code 0: identical, or near-ties only (the verdict names which). 1: a difference. 2: no verdict, also
    after Ctrl-C.

    Example: forerun audit greedy --baseline localhost:8001 --candidate localhost:8000 --reference ./model
    """
    from forerun.audit.parity.answer_pairs import request_pairs, server_source
    from forerun.audit.parity.near_ties import NearTieReferee
    from forerun.audit.parity.run import compare_greedy, compare_identical
    from forerun.audit.prompts import read_prompts
    from forerun.servers.endpoint import fault_notes
    from forerun.types import SamplingParams

    with server_connections(model, api_key, dialect, timeout) as connect:
        check_page(output)
        loaded = read_prompts(prompts, num_prompts)
        candidate_server = connect(candidate)
        baseline_server = connect(baseline) if is_url(baseline) else None
        name = reference or (baseline if baseline_server is None else None)
        reference_model = None if name is None else load_reference(name)
        referee, precisions = None, None
        if reference_model is not None:
            served = precision or str(reference_model.own_dtype).removeprefix("torch.")
            other = baseline_precision or ("float32" if baseline_server is None else served)
            precisions = {"baseline": other, "candidate": served}
            referee = NearTieReferee(reference_model, [other, served], bound)
        prompts_with_ids = with_token_ids(loaded, reference_model)
        requests = [(each, SamplingParams(temperature=0.0)) for each in prompts_with_ids]
        source = (
            _greedy_source(reference_model) if baseline_server is None else server_source(baseline_server)
        )
        with progress_bar("comparing", len(requests)) as progress:
            pairs = request_pairs(requests, source, server_source(candidate_server), max_tokens, concurrency)
            if invariant:
                report = compare_identical("greedy", pairs, progress)
            else:
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
                "invariant": invariant,
                "max_tokens": max_tokens,
                "concurrency": concurrency,
            },
        )
        finish(report, as_json=as_json, page=output)


def _greedy_source(model: Reference | None) -> AnswerSource:
    """Greedy outputs of the reference model."""
    from forerun.servers.completions import END, Completion

    assert model is not None

    def generate(prompt: Prompt, _: SamplingParams, max_tokens: int) -> Completion:
        tokens = model.greedy(prompt.ids, max_tokens)
        ended = len(tokens) < max_tokens
        return Completion((*tokens, END) if ended else tuple(tokens), prompt_ids=prompt.ids)

    return generate
