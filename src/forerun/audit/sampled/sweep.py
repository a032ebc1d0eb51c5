"""The sweep of sampling settings that an audit tests."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.errors import InvalidSampling, did_you_mean
from forerun.servers.completions import Prompt
from forerun.types import SamplingParams

SETTINGS: dict[str, SamplingParams] = {
    "temperature 1": SamplingParams(),
    "top-k 8": SamplingParams(top_k=8),
    "cool, top-k 8": SamplingParams(temperature=0.7, top_k=8),
    "warm, top-k 8": SamplingParams(temperature=1.2, top_k=8),
    "repetition, top-k 8": SamplingParams(top_k=8, repetition_penalty=1.05),
    "presence and frequency, top-k 8": SamplingParams(top_k=8, presence_penalty=0.6, frequency_penalty=0.4),
    "min-p, top-k 8": SamplingParams(top_k=8, min_p=0.05),
    "all at once, top-k 8": SamplingParams(
        temperature=0.9, top_k=8, min_p=0.02, repetition_penalty=1.05, presence_penalty=0.4
    ),
    "top-p 0.9": SamplingParams(top_p=0.9),
}
"""Most leave few tokens, so that their distance can be bounded; the others are tested only."""


@dataclass(frozen=True, slots=True)
class SweepCase:
    """Sampling settings combined with a prompt."""

    name: str
    sampling: SamplingParams
    prompt: Prompt


def choose_settings(names: list[str]) -> dict[str, SamplingParams]:
    """The settings with these names; all if none is given."""
    if unknown := [name for name in names if name not in SETTINGS]:
        raise InvalidSampling(f"unknown settings {unknown[0]!r}; {did_you_mean(unknown[0], SETTINGS)}")
    return {name: SETTINGS[name] for name in names} if names else SETTINGS


def combine(
    settings: dict[str, SamplingParams], prompts: list[Prompt], *, all_prompts: bool
) -> list[SweepCase]:
    """Combine every setting with every prompt, or each with the next prompt in turn."""
    if all_prompts and len(prompts) > 1:
        return [
            SweepCase(f"{name}, prompt {number}", sampling, prompt)
            for name, sampling in settings.items()
            for number, prompt in enumerate(prompts, 1)
        ]
    return [
        SweepCase(name, sampling, prompts[number % len(prompts)])
        for number, (name, sampling) in enumerate(settings.items())
    ]
