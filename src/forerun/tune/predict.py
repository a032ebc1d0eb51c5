"""What each choice would gain, predicted from plain answers and from what passes cost.

Plain answers tell which guesses would have stood: each drafter is replayed over them, with the controller
that decides in the engine, and every step costs what a pass of so many rows was measured to cost, and what a
plain step takes beside its pass. That is theorem 3.8 with chances and costs as they are, instead of one alpha
and one c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

import numpy as np

from forerun.bench.replay import Replay, ReplayStats
from forerun.bench.summary import RatioEstimate, ratio_of_sums
from forerun.bench.transcripts import Transcript
from forerun.config import SpeculationConfig
from forerun.control.step_cost import StepCost
from forerun.drafters.registry import make_drafters
from forerun.engines.vllm.launch import CHAIN
from forerun.errors import UnreadablePrompts
from forerun.types import Drafter

OWN_SECONDS: Final = 0.0006
"""What deciding takes in a step, beside the drafter: measured in vLLM on two cores."""

WORTH_IT: Final = 1.03
"""A gain below this is none: a server that does not guess has less to go wrong, and one that shares
nothing or has no second model asks for less.
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """Something that could be used."""

    name: str
    config: SpeculationConfig


PLAIN: Final = Choice("plain", SpeculationConfig(max_draft=0))


@dataclass(frozen=True, slots=True, eq=False)
class BaselineRun:
    """What plain decoding told: its answers, the seconds of a pass by its rows, those of a token when passes
    cost that, and how many tokens an answer could have had.
    """

    answers: Sequence[Transcript]
    costs: Mapping[int, float]
    pace: float
    max_tokens: int

    def some(self, places: Sequence[int]) -> BaselineRun:
        """The same with the answers at these places alone."""
        return replace(self, answers=[self.answers[place] for place in places])


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a choice would gain over plain decoding on all prompts together, with its interval over prompts,
    and why: tokens and guesses per step, by depth.
    """

    choice: Choice
    gain: RatioEstimate
    tokens_per_step: float = 1.0
    guesses_per_step: float = 0.0
    survival: tuple[float, ...] = ()
    measured: bool = False


NOTHING: Final = Prediction(PLAIN, RatioEstimate(1.0, 1.0, 1.0))


def lookups() -> list[Choice]:
    """Choices that need no model: those that a replay can judge. Grammars are obeyed in all of them."""
    return [
        Choice("n-grams of the request", SpeculationConfig(drafters=("ngram", "grammar"))),
        Choice("suffixes of the request", SpeculationConfig()),
        Choice("suffixes of the request and of earlier answers", SpeculationConfig(share_outputs=True)),
    ]


def predict(choice: Choice, plainly: BaselineRun) -> Prediction:
    """Replay a choice over plain answers."""
    costs = dict(sorted(plainly.costs.items()))
    cost = StepCost(list(costs), list(costs.values()))
    recorded = [replace(each, category=str(number)) for number, each in enumerate(plainly.answers)]

    def replay() -> Replay:
        drafter = _first_drafter(choice.config)
        return Replay(drafter, nodes=CHAIN, cost=cost, max_tokens=plainly.max_tokens)

    replay().run(recorded[:1])  # compiles, which takes no time later
    if not (tallies := list(replay().run(recorded).values())):
        raise UnreadablePrompts("every answer is too short to tell anything: give prompts with longer ones")
    num_steps = sum(each.num_steps for each in tallies)
    depths = zip_longest(*(each.stood[:16] for each in tallies), fillvalue=0)
    return Prediction(
        choice,
        _gain(tallies, plainly.pace, costs[1]),
        sum(each.num_tokens for each in tallies) / num_steps,
        sum(each.num_guesses for each in tallies) / num_steps,
        tuple(sum(stood) / num_steps for stood in depths),
    )


def _gain(tallies: Sequence[ReplayStats], pace: float, first_row: float) -> RatioEstimate:
    """Seconds of plain decoding over those of the steps that were made; what a plain step takes beside a pass
    of one row, every step does. A tally is of one prompt, over which the interval is bootstrapped.
    """
    beside = pace - first_row + OWN_SECONDS
    plain = np.array([each.num_tokens * pace for each in tallies])
    made = np.array([each.pass_seconds + each.seconds + beside * each.num_steps for each in tallies])
    return ratio_of_sums(plain, made)


def _first_drafter(config: SpeculationConfig) -> Drafter:
    """Who guesses for requests that do not say who is to."""
    return next(iter(make_drafters(config, chain=True).values()))


def best(predictions: Sequence[Prediction]) -> Prediction:
    """What to use: the largest gain, if it is worth it; what needs less wins unless more is worth it."""
    most = max(predictions, key=lambda each: each.gain.value, default=NOTHING)
    if most.gain.value < WORTH_IT:
        return NOTHING
    near = [each for each in predictions if each.gain.value * WORTH_IT >= most.gain.value]
    return min(near, key=lambda each: (_needs(each.choice.config), -each.gain.value))


def _needs(config: SpeculationConfig) -> tuple[bool, bool]:
    """A second model is most to ask for, sharing answers comes next."""
    return config.draft_model is not None, config.share_outputs


Watch = Callable[[str], None]
