"""Measured speedups by draft length, and what the theory predicts from acceptance and costs.

Leviathan et al., tables 2 and 4. Costs are measured apart from acceptance: the time of drafting per step, and
the time of a step that verifies as many tokens drawn at random, hardly any of which is accepted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from forerun.bench.ratios import ratio_of_sums
from forerun.core import theory
from forerun.engines.local.engine import Engine
from forerun.engines.local.request import Request
from forerun.theory.acceptance import TextAcceptance
from forerun.theory.target_text import TokenPrompt
from forerun.types import Draft, FloatArray, RequestView, SamplingParams, Verdict

RANDOM: Final = "random"
"""The drafter whose drafts cost no time and are not accepted."""

RunKind: TypeAlias = tuple[str, int]
"""A drafter by name, and its draft length."""

BASELINE: Final[RunKind] = ("", 0)


class RandomDrafter:
    """Chains of random tokens: the cost of verification without the gain."""

    def __init__(self, vocab_size: int) -> None:
        self._rng = np.random.default_rng(0)
        self._vocab_size = vocab_size

    def propose(self, views: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:  # noqa: ARG002
        """One chain per view, as long as its budget."""
        return [Draft.chain(self._rng.integers(self._vocab_size, size=max(each, 0))) for each in budgets]

    def learn(self, id: str, draft: Draft, verdict: Verdict) -> None:  # noqa: A002
        """Nothing to learn."""

    def forget(self, id: str) -> None:  # noqa: A002
        """Nothing to drop."""


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """Decoding of one output after its first step: tokens, steps, and the time in all and for drafts."""

    num_tokens: int
    num_steps: int
    seconds: float
    draft_seconds: float = 0.0


DecodeTimes: TypeAlias = dict[RunKind, list[DecodeTime]]
"""Runs by drafter and draft length, in the order of the prompts."""


def time_decoding(
    engines: Mapping[str, Engine],
    prompts: Sequence[TokenPrompt],
    draft_lengths: Sequence[int],
    temperature: float,
    max_tokens: int,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> DecodeTimes:
    """Decode each prompt alone: without drafts, and by the engine of every drafter with every draft length.

    The order is random. The first prompt is decoded once more before, which is not counted. A prompt with an
    output of one step does not count either.
    """
    kinds: list[RunKind] = [BASELINE, *((name, each) for name in engines for each in draft_lengths)]
    times: DecodeTimes = {kind: [] for kind in kinds}
    rng = random.Random(0)  # noqa: S311
    for number, prompt in enumerate([prompts[0], *prompts]):
        found = {}
        for kind in rng.sample(kinds, len(kinds)):
            request = Request(
                "timed", prompt.tokens, max_tokens, SamplingParams(temperature=temperature), max_draft=kind[1]
            )
            found[kind] = _decode(engines[kind[0] or RANDOM], request)
            progress(number * len(kinds) + len(found), (len(prompts) + 1) * len(kinds))
        if number and all(found.values()):
            for kind, run in found.items():
                if run is not None:
                    times[kind].append(run)
    return times


def _decode(engine: Engine, request: Request) -> DecodeTime | None:
    """Decode one request; None for an output of one step."""
    engine.add(request)
    began: tuple[float, float] | None = None
    num_tokens = num_steps = 0
    for update in engine.stream():
        if update.result is not None and update.result.error is not None:
            raise update.result.error
        if began is not None:
            num_tokens += len(update.token_ids)
            num_steps += bool(update.token_ids)
        elif update.token_ids:
            began = _seconds(engine)
    if began is None or not num_steps:
        return None
    seconds, draft_seconds = (after - before for after, before in zip(_seconds(engine), began, strict=True))
    return DecodeTime(num_tokens, num_steps, seconds, draft_seconds)


def _seconds(engine: Engine) -> tuple[float, float]:
    """The time of all steps of an engine, and that of its drafters."""
    return engine.seconds, sum(engine.drafter_totals.seconds.values())


def compare_speeds(
    name: str, temperature: float, times: DecodeTimes, acceptance: Sequence[TextAcceptance]
) -> list[dict[str, Any]]:
    """One row per draft length of a drafter: costs, predicted and measured speedup.

    There are three predictions: theorem 3.8, in which verification costs no more than one token; the same
    with the measured cost of verification; and with the tokens per step that follow from the acceptance at
    every position, not from its mean.
    """
    step = _seconds_per_step(times[BASELINE])
    alpha = float(np.concatenate([each.alphas[1.0] for each in acceptance]).mean())
    rows = []
    for length in sorted(length for drafter, length in times if drafter == name):
        runs = times[name, length]
        c = _draft_seconds_per_step(runs) / step / length
        verification = _seconds_per_step(times[RANDOM, length], without_drafts=True) / step
        expected = _expected_tokens(acceptance, length)
        measured = ratio_of_sums(_seconds_per_token(times[BASELINE]), _seconds_per_token(runs))
        rows.append(
            {
                "draft": name,
                "temperature": temperature,
                "draft_length": length,
                "alpha": alpha,
                "c": c,
                "verification": verification,
                "tokens_per_step": sum(run.num_tokens for run in runs) / sum(run.num_steps for run in runs),
                "expected_tokens_by_mean": theory.expected_tokens(alpha, length),
                "expected_tokens_by_position": expected,
                "theorem": theory.speedup(alpha, length, c),
                "theorem_with_verification": theory.speedup(alpha, length, c, verification),
                "predicted": expected / (length * c + verification),
                "measured": measured.value,
                "interval": [measured.low, measured.high],
            }
        )
    return rows


def _expected_tokens(acceptance: Sequence[TextAcceptance], draft_length: int) -> float:
    """Expected tokens per step over all outputs, whose first token no draft precedes."""
    factors = [each.given_token[1:].tolist() for each in acceptance]
    return sum(map(len, factors)) / sum(theory.expected_steps(each, draft_length) for each in factors)


def _seconds_per_step(runs: Sequence[DecodeTime], *, without_drafts: bool = False) -> float:
    seconds = sum(run.seconds - (run.draft_seconds if without_drafts else 0.0) for run in runs)
    return seconds / sum(run.num_steps for run in runs)


def _draft_seconds_per_step(runs: Sequence[DecodeTime]) -> float:
    return sum(run.draft_seconds for run in runs) / sum(run.num_steps for run in runs)


def _seconds_per_token(runs: Sequence[DecodeTime]) -> FloatArray:
    return np.array([run.seconds / run.num_tokens for run in runs])
