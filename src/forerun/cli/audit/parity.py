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
    servers,
)
from forerun.cli.console import progress_bar

if TYPE_CHECKING:
    from forerun.audit.parity.answer_pairs import AnswerPair, AnswerSource
    from forerun.audit.parity.run import Allowance
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
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens per answer.", rich_help_panel=REQUESTS)]
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
    """Compare answers at temperature 0 token by token, and classify every first difference.

    In float32, speculation leaves every token identical. In bfloat16 and float16, rounding depends on the
    shape of a batch, and two tokens whose logits are nearly equal can swap: a near-tie. The audit calls a
    difference a near-tie if the gap of the two logits, in float32, is within the rounding error of the
    servers' dtype. Any other difference is a fault.

    Exit code 0: identical, or near-ties only (the verdict names which). 1: a difference. 2: no verdict, also
    after Ctrl-C.

    Example: forerun audit greedy --baseline localhost:8001 --candidate localhost:8000 --reference ./model
    """
    from forerun.audit.parity.answer_pairs import ask_both, speaker_of
    from forerun.audit.parity.near_ties import NearTieReferee
    from forerun.audit.parity.run import judge_greedy
    from forerun.audit.prompts import read_prompts
    from forerun.servers.endpoint import fault_notes
    from forerun.types import SamplingParams

    with servers(model, api_key, dialect, timeout) as connect:
        check_page(output)
        asked = read_prompts(prompts, num_prompts)
        tested = connect(candidate)
        plain = connect(baseline) if is_url(baseline) else None
        name = reference or (baseline if plain is None else None)
        judge = None if name is None else _load(name)
        referee, precisions = None, None
        if judge is not None:
            usual = str(judge.own_dtype).removeprefix("torch.")
            mine = precision or usual
            other = baseline_precision or ("float32" if plain is None else mine)
            precisions = {"baseline": other, "candidate": mine}
            referee = NearTieReferee(judge, [other, mine], bound)
        requests = [(each, SamplingParams(temperature=0.0)) for each in _prompts(asked, judge)]
        speaker = speaker_of(plain) if plain is not None else _speaking(judge)
        with progress_bar("comparing", len(requests)) as done:
            pairs = ask_both(requests, speaker, speaker_of(tested), max_tokens, concurrency)
            report = judge_greedy(pairs, referee, done)
        report = replace(
            report,
            notes=(*report.notes, *fault_notes(tested, plain)),
            question={
                "baseline": baseline,
                "candidate": candidate,
                "model": tested.model,
                "reference": name,
                "precision": precisions,
                "tokens": max_tokens,
                "at_once": concurrency,
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
    """Compare sampled answers with the same seeds, for servers that promise identical tokens.

    Rounding shifts distributions slightly, in bfloat16 and float16 more than in float32, so a few answers may
    differ. The audit reports a difference if answers differ more often than rounding explains.

    Exit code 0: identical, or no more differences than rounding explains. 1: a difference. 2: no verdict,
    also after Ctrl-C.

    Example: forerun audit seeded --baseline localhost:8001 --candidate localhost:8000 --num-seeds 8
    """
    from forerun.audit.parity.answer_pairs import ask_both, speaker_of
    from forerun.audit.parity.divergence_rate import can_say
    from forerun.audit.parity.run import judge_seeded
    from forerun.audit.prompts import read_prompts
    from forerun.audit.sampled.against_model import TokenReader
    from forerun.servers.endpoint import fault_notes
    from forerun.types import SamplingParams

    with servers(model, api_key, dialect, timeout) as connect:
        check_page(output)
        asked = read_prompts(prompts, num_prompts)
        tested = connect(candidate)
        plain = connect(baseline)
        judge = None if reference is None else _load(reference)
        sampling = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k)
        texts = _prompts(asked, judge) * num_seeds
        requests = [(prompt, replace(sampling, seed=seed)) for seed, prompt in enumerate(texts)]
        with progress_bar("comparing", len(requests)) as done:
            pairs = ask_both(requests, speaker_of(plain), speaker_of(tested), max_tokens, concurrency)
            possible = None if judge is None else partial(can_say, judge, TokenReader(judge))
            report = judge_seeded(pairs, _allowance(plain, epsilon), possible, error_rate, done)
        report = replace(
            report,
            notes=(*report.notes, *fault_notes(tested, plain)),
            question={
                "baseline": baseline,
                "candidate": candidate,
                "model": tested.model,
                "reference": reference,
                "tokens": max_tokens,
                "seeds": num_seeds,
                "settings": tested.dialect.settings(sampling),
                "at_once": concurrency,
            },
        )
        finish(report, as_json=as_json, page=output)


def _allowance(plain: Endpoint, epsilon: float | None) -> Allowance:
    """What rounding may do: epsilon as given, or all of it by the server's own log-probabilities."""
    from forerun.audit.rounding_error import OwnError, error_of_server

    measured: dict[Prompt, OwnError] = {}

    def allowed(pair: AnswerPair) -> tuple[float, float]:
        if epsilon is not None:
            return epsilon, epsilon
        if pair.prompt not in measured:
            measured[pair.prompt] = error_of_server(plain, pair.prompt, 4, 1)
        own = measured[pair.prompt]
        return own.sigma, own.epsilon(pair.sampling)

    return allowed


def _load(name: str) -> Reference:
    from rich.console import Console

    from forerun.models.reference import Reference

    with Console(stderr=True).status("loading the reference"):
        return Reference(name)


def _prompts(prompts: list[Prompt], judge: Reference | None) -> list[Prompt]:
    """The prompts, as token ids where there is a reference that knows them."""
    from forerun.audit.sampled.prepare import with_ids

    return prompts if judge is None else [with_ids(each, judge) for each in prompts]


def _speaking(judge: Reference | None) -> AnswerSource:
    """The reference's own way to answer: greedily."""
    from forerun.servers.endpoint import END, Completion

    assert judge is not None

    def speak(prompt: Prompt, _: SamplingParams, num_tokens: int) -> Completion:
        said = judge.greedy(prompt.ids, num_tokens)
        ended = len(said) < num_tokens
        return Completion((*said, END) if ended else tuple(said), prompt_ids=prompt.ids)

    return speak
