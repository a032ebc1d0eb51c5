"""`forerun audit greedy` and `forerun audit seeded`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.audit.show import (
    ApiKey,
    AsJson,
    DialectName,
    Html,
    Model,
    Timeout,
    Url,
    finish,
    is_url,
    servers,
)
from forerun.cli.console import counting

if TYPE_CHECKING:
    from forerun.audit.parity.answers import Pair, Speaker
    from forerun.audit.parity.run import Allowance
    from forerun.models.reference import Reference
    from forerun.servers.endpoint import Endpoint, Prompt
    from forerun.types import SamplingParams

Baseline = Annotated[str, typer.Option(help="The same server without speculation; or a model's directory.")]
ReferenceModel = Annotated[
    str | None, typer.Option("--reference", help="A directory with the model, to rule on differences.")
]
Prompts = Annotated[Path | None, typer.Option(help="A prompt a line, as text or JSON; our own if left out.")]
Tokens = Annotated[int, typer.Option(min=1, help="Tokens of each answer.")]
AtOnce = Annotated[int, typer.Option(min=1, max=64, help="Requests in flight.")]
Most = Annotated[int | None, typer.Option("--most", min=1, help="Only the first so many prompts.")]


def greedy(
    baseline: Baseline,
    candidate: Url,
    reference: ReferenceModel = None,
    prompts: Prompts = None,
    most: Most = None,
    tokens: Tokens = 64,
    precision: Annotated[
        str | None,
        typer.Option(help="What the servers compute in; the precision the model is kept in if left out."),
    ] = None,
    baseline_precision: Annotated[
        str | None, typer.Option(help="The baseline's precision, if it is another.")
    ] = None,
    bound: Annotated[
        float | None, typer.Option(min=0, help="Gaps of logits up to this are ties; derived if left out.")
    ] = None,
    at_once: AtOnce = 1,
    model: Model = None,
    api_key: ApiKey = "none",
    dialect: DialectName = None,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
    html: Html = None,
) -> None:
    """Compare answers at temperature 0 token by token, and rule on every first difference.

    A difference that rounding explains is a near-tie: the gap of the two logits, in float32, is below what
    the servers' precisions can move. Any other is a difference.
    """
    from forerun.audit.parity.answers import ask_both, speaker_of
    from forerun.audit.parity.referee import Referee
    from forerun.audit.parity.run import judge_greedy
    from forerun.audit.prompts import read_prompts
    from forerun.servers.endpoint import told_faults
    from forerun.types import SamplingParams

    with servers(model, api_key, dialect, timeout) as connect:
        tested = connect(candidate)
        plain = connect(baseline) if is_url(baseline) else None
        name = reference or (baseline if plain is None else None)
        judge = None if name is None else _load(name)
        referee = None
        if judge is not None:
            usual = str(judge.own_dtype).removeprefix("torch.")
            mine = precision or usual
            other = baseline_precision or ("float32" if plain is None else mine)
            referee = Referee(judge, [other, mine], bound)
        requests = [
            (each, SamplingParams(temperature=0.0)) for each in _prompts(read_prompts(prompts, most), judge)
        ]
        speaker = speaker_of(plain) if plain is not None else _speaking(judge)
        with counting("comparing", len(requests)) as done:
            pairs = ask_both(requests, speaker, speaker_of(tested), tokens, at_once)
            report = judge_greedy(pairs, referee, done)
        report = replace(
            report,
            notes=(*report.notes, *told_faults(tested, plain)),
            question={
                "baseline": baseline,
                "candidate": candidate,
                "model": tested.model,
                "reference": name,
                "tokens": tokens,
                "at_once": at_once,
            },
        )
        finish(report, as_json=as_json, html=html)


def seeded(
    baseline: Annotated[str, typer.Option(help="The same server without speculation.")],
    candidate: Url,
    reference: ReferenceModel = None,
    prompts: Prompts = None,
    most: Most = None,
    tokens: Tokens = 64,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds for each prompt.")] = 4,
    temperature: Annotated[float, typer.Option(min=0.01, help="Of both servers.")] = 0.8,
    top_p: Annotated[float, typer.Option(min=0.01, max=1.0, help="Of both servers.")] = 0.95,
    top_k: Annotated[int, typer.Option(min=0, help="Of both servers; 0 is all tokens.")] = 0,
    error_rate: Annotated[
        float, typer.Option(min=1e-9, max=0.5, help="How often an honest server may be found different.")
    ] = 0.05,
    epsilon: Annotated[
        float | None,
        typer.Option(min=1e-6, max=0.5, help="Allow this distance for rounding; measured if left out."),
    ] = None,
    at_once: AtOnce = 1,
    model: Model = None,
    api_key: ApiKey = "none",
    dialect: DialectName = None,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
    html: Html = None,
) -> None:
    """Compare sampled answers with the same seeds, for servers that promise the same tokens.

    Rounding moves laws a little, so a few answers may part; more than that is a difference.
    """
    from forerun.audit.parity.answers import ask_both, speaker_of
    from forerun.audit.parity.chance import can_say
    from forerun.audit.parity.run import judge_seeded
    from forerun.audit.prompts import read_prompts
    from forerun.audit.sampled.against_model import TokenReader
    from forerun.servers.endpoint import told_faults
    from forerun.types import SamplingParams

    with servers(model, api_key, dialect, timeout) as connect:
        tested = connect(candidate)
        plain = connect(baseline)
        judge = None if reference is None else _load(reference)
        sampling = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k)
        texts = _prompts(read_prompts(prompts, most), judge) * seeds
        requests = [(prompt, replace(sampling, seed=seed)) for seed, prompt in enumerate(texts)]
        with counting("comparing", len(requests)) as done:
            pairs = ask_both(requests, speaker_of(plain), speaker_of(tested), tokens, at_once)
            possible = None if judge is None else partial(can_say, judge, TokenReader(judge))
            report = judge_seeded(pairs, _allowance(plain, epsilon), possible, error_rate, done)
        report = replace(
            report,
            notes=(*report.notes, *told_faults(tested, plain)),
            question={
                "baseline": baseline,
                "candidate": candidate,
                "model": tested.model,
                "reference": reference,
                "tokens": tokens,
                "seeds": seeds,
                "settings": tested.dialect.settings(sampling),
                "at_once": at_once,
            },
        )
        finish(report, as_json=as_json, html=html)


def _allowance(plain: Endpoint, epsilon: float | None) -> Allowance:
    """What rounding may do: epsilon as given, or all of it by the server's own log-probabilities."""
    from forerun.audit.numerics import OwnError, error_of_server

    measured: dict[Prompt, OwnError] = {}

    def allowed(pair: Pair) -> tuple[float, float]:
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


def _speaking(judge: Reference | None) -> Speaker:
    """The reference's own way to answer: greedily."""
    from forerun.servers.endpoint import END, Answer

    assert judge is not None

    def speak(prompt: Prompt, _: SamplingParams, num_tokens: int) -> Answer:
        said = judge.greedy(prompt.ids, num_tokens)
        ended = len(said) < num_tokens
        return Answer((*said, END) if ended else tuple(said), prompt_ids=prompt.ids)

    return speak
