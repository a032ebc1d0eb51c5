"""Outputs of the target, and its distributions at each of their positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from forerun.core.batch_sampling import BatchSampling
from forerun.core.logits_warper import probabilities
from forerun.engines.local.engine import Engine
from forerun.engines.local.request import Request, Result
from forerun.models.input_rows import InputRows
from forerun.models.runner import Runner
from forerun.types import SamplingParams


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as token ids, with its category."""

    category: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TargetText:
    """An output that the target sampled at a temperature, behind its prompt."""

    prompt: TokenPrompt
    output: tuple[int, ...]
    temperature: float


def generate_texts(
    engine: Engine,
    prompts: Sequence[TokenPrompt],
    temperature: float,
    max_tokens: int,
    progress: Callable[[int], None] = lambda _: None,
) -> list[TargetText]:
    """One output of the target per prompt, without speculation; empty outputs are left out."""
    sampling = SamplingParams(temperature=temperature)
    for number, prompt in enumerate(prompts):
        engine.add(Request(str(number), prompt.tokens, max_tokens, sampling, max_draft=0))
    results: dict[int, Result] = {}
    for update in engine.stream():
        if update.result is not None:
            if update.result.error is not None:
                raise update.result.error
            results[int(update.id)] = update.result
            progress(len(results))
    return [
        TargetText(prompt, tuple(results[number].token_ids), temperature)
        for number, prompt in enumerate(prompts)
        if results[number].token_ids
    ]


def output_logits(runner: Runner, text: TargetText) -> torch.Tensor:
    """A model's logits at each position of an output, [tokens, vocabulary]."""
    slot = runner.allocate()
    try:
        tokens = np.array([*text.prompt.tokens, *text.output[:-1]], dtype=np.int64)
        return runner.forward([InputRows(slot, tokens, num_logits=len(text.output))]).float()
    finally:
        runner.free(slot)


def standardize(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """The distribution of each row of logits at a temperature (Leviathan et al., section 2.2)."""
    settings = BatchSampling.of([SamplingParams(temperature=temperature)] * len(logits))
    return probabilities(logits, settings)
