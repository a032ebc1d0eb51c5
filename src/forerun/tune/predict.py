"""What each choice would gain, predicted from plain answers and from what passes cost.

Plain answers tell which guesses would have stood: each drafter is replayed over them, with the controller
that decides in the engine, and every pass costs what such passes were measured to cost, and what plain steps
of that answer took beside their pass. That is theorem 3.8 with chances and costs as they are, instead of one
alpha and one c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from forerun.bench.replay import Replay, Tally
from forerun.bench.transcripts import Transcript
from forerun.config import SpeculationConfig
from forerun.control.cost import StepCost
from forerun.drafters.registry import make_drafters
from forerun.engines.vllm.launch import CHAIN
from forerun.errors import UnreadablePrompts
from forerun.types import Drafter, IntArray

OWN_SECONDS: Final = 0.0006
"""What deciding takes in a step, beside the drafter: measured in vLLM on two cores."""

WORTH_IT: Final = 1.03
"""A gain below this is none: a server that does not guess has less to go wrong."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Something that could be used."""

    name: str
    config: SpeculationConfig


PLAIN: Final = Choice("plain", SpeculationConfig(max_draft=0))


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """A prompt, its plain answer, and the seconds that a token of it took."""

    prompt: IntArray
    output: IntArray
    pace: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a choice would gain over plain decoding on the prompt in the middle, and why: tokens and guesses
    per step, by depth. `by_prompt` has the gain of every prompt whose answer was long enough, by its place.
    """

    choice: Choice
    gain: float
    tokens_per_step: float = 1.0
    guesses_per_step: float = 0.0
    survival: tuple[float, ...] = ()
    measured: bool = False
    by_prompt: Mapping[int, float] = field(default_factory=dict)

    def over(self, places: Sequence[int]) -> float:
        """The gain over some of the prompts; over all, where they were not told apart."""
        return _middle([self.by_prompt[at] for at in places if at in self.by_prompt] or [self.gain])


NOTHING: Final = Prediction(PLAIN, 1.0)


def lookups() -> list[Choice]:
    """Choices that need no model: those that a replay can judge. Grammars are obeyed in all of them."""
    return [
        Choice("n-grams of the request", SpeculationConfig(drafters=("ngram", "grammar"))),
        Choice("suffixes of the request", SpeculationConfig()),
        Choice("suffixes of the request and of earlier answers", SpeculationConfig(share_outputs=True)),
    ]


def predict(choice: Choice, answers: Sequence[Spoken], costs: Mapping[int, float]) -> Prediction:
    """Replay a choice over plain answers."""
    cost = StepCost(sorted(costs), [costs[rows] for rows in sorted(costs)])
    recorded = [Transcript(str(place), each.prompt, each.output) for place, each in enumerate(answers)]

    def replay() -> Replay:
        return Replay(_first_drafter(choice.config), nodes=CHAIN, cost=cost)

    replay().run(recorded[:1])  # compiles, which takes no time later
    every = {int(place): tally for place, tally in replay().run(recorded).items()}
    by_prompt = {place: tally for place, tally in every.items() if answers[place].pace}
    if not by_prompt:
        raise UnreadablePrompts("every answer is too short to tell anything: give prompts with longer ones")
    gains = {place: _gain(tally, answers[place].pace, costs[1]) for place, tally in by_prompt.items()}
    tallies = by_prompt.values()
    tokens, steps = sum(each.num_tokens for each in tallies), sum(each.num_steps for each in tallies)
    return Prediction(
        choice,
        _middle(list(gains.values())),
        tokens / steps,
        sum(each.num_guesses for each in tallies) / steps,
        tuple(
            sum(each.stood[depth] for each in tallies if depth < len(each.stood)) / steps
            for depth in range(16)
        ),
        by_prompt=gains,
    )


def _gain(tally: Tally, pace: float, first_row: float) -> float:
    """Seconds of plain decoding over those of the steps that were made; what a plain step takes beside a pass
    of one row, every step does.
    """
    beside = pace - first_row + OWN_SECONDS
    return tally.num_tokens * pace / (tally.pass_seconds + tally.seconds + beside * tally.num_steps)


def _middle(gains: Sequence[float]) -> float:
    """The median of ratios, as measured gains have it."""
    return float(np.exp(np.median(np.log(gains))))


def _first_drafter(config: SpeculationConfig) -> Drafter:
    """Who guesses for requests that do not say who is to."""
    return next(iter(make_drafters(config, chain=True).values()))


def best(predictions: Sequence[Prediction]) -> Prediction:
    """What to use: the largest gain, if it is worth it; what needs less wins where two gain the same."""
    most = max(predictions, key=lambda each: each.gain, default=NOTHING)
    if most.gain < WORTH_IT:
        return NOTHING
    near = [each for each in predictions if each.gain >= most.gain / 1.01]
    return min(near, key=lambda each: _needs(each.choice.config))


def _needs(config: SpeculationConfig) -> tuple[bool, bool]:
    """A second model is most to ask for, sharing answers comes next."""
    return config.draft_model is not None, config.share_outputs


Watch = Callable[[str], None]
