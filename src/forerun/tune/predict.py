"""What each choice would gain, predicted from plain answers and from what passes cost.

Plain answers tell which guesses would have stood: each drafter is replayed over them, with the controller
that decides in the engine, and every pass costs what such passes were measured to cost. That is theorem 3.8
with chances and costs as they are, instead of one alpha and one c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.bench.replay import Replay
from forerun.bench.transcripts import Transcript
from forerun.config import SpeculationConfig
from forerun.control.cost import StepCost
from forerun.drafters.registry import make_drafters
from forerun.engines.vllm.launch import CHAIN
from forerun.errors import UnreadablePrompts
from forerun.types import Drafter

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


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a choice would gain over plain decoding, and why: tokens and guesses per step, by depth."""

    choice: Choice
    gain: float
    tokens_per_step: float = 1.0
    guesses_per_step: float = 0.0
    survival: tuple[float, ...] = ()
    measured: bool = False


NOTHING: Final = Prediction(PLAIN, 1.0)


def lookups() -> list[Choice]:
    """Choices that need no model: those that a replay can judge. Grammars are obeyed in all of them."""
    return [
        Choice("n-grams of the request", SpeculationConfig(drafters=("ngram", "grammar"))),
        Choice("suffixes of the request", SpeculationConfig()),
        Choice("suffixes of the request and of earlier answers", SpeculationConfig(share_outputs=True)),
    ]


def predict(choice: Choice, answers: Sequence[Transcript], costs: Mapping[int, float]) -> Prediction:
    """Replay a choice over plain answers."""
    cost = StepCost(sorted(costs), [costs[rows] for rows in sorted(costs)])

    def replay() -> Replay:
        return Replay(_first_drafter(choice.config), nodes=CHAIN, cost=cost)

    replay().run(answers[:1])  # compiles, which takes no time later
    tallies = list(replay().run(answers).values())
    if not tallies:
        raise UnreadablePrompts("every answer is too short to tell anything: give prompts with longer ones")
    tokens, steps = sum(each.num_tokens for each in tallies), sum(each.num_steps for each in tallies)
    seconds = sum(each.pass_seconds + each.seconds for each in tallies) + OWN_SECONDS * steps
    return Prediction(
        choice,
        tokens * costs[1] / seconds,
        tokens / steps,
        sum(each.num_guesses for each in tallies) / steps,
        tuple(
            sum(each.stood[depth] for each in tallies if depth < len(each.stood)) / steps
            for depth in range(16)
        ),
    )


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
