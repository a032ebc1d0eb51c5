"""Predicted speedup of each choice, from non-speculative outputs and measured step costs.

Each drafter is replayed over non-speculative outputs with the engine's controller, which determines the
draft tokens that are accepted. Each step is charged the measured cost of its rows plus the time that a
non-speculative step takes beside its forward pass. This is theorem 3.8 with the actual acceptance
probabilities and costs in place of a single alpha and c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

import numpy as np

from forerun.bench.ratios import RatioEstimate, ratio_of_sums
from forerun.bench.replay import Replay, ReplayStats
from forerun.bench.transcripts import Transcript
from forerun.config import SpeculationConfig
from forerun.control.step_cost import StepCost
from forerun.drafters.registry import make_drafters
from forerun.engines.vllm.speculative_config import MAX_CHAIN_LENGTH
from forerun.errors import UnreadablePrompts
from forerun.types import Drafter

CONTROLLER_SECONDS: Final = 0.0006
"""Time of the controller per step, without the drafter: measured in vLLM on two cores."""

MIN_SPEEDUP: Final = 1.03
"""Smaller speedups do not count: a server without speculation has fewer ways to fail, and a choice without
shared outputs or a second model has fewer requirements.
"""

MAX_DEPTH: Final = 16
"""Depths of the survival curve."""

ReportProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration that can be recommended."""

    name: str
    config: SpeculationConfig


BASELINE: Final = Choice("no speculation", SpeculationConfig(max_draft=0))


@dataclass(frozen=True, slots=True, eq=False)
class BaselineRun:
    """Non-speculative outputs, the seconds of a step by its rows and of a token at these costs, and the
    maximal number of output tokens.
    """

    answers: Sequence[Transcript]
    costs: Mapping[int, float]
    seconds_per_token: float
    max_tokens: int

    def select(self, indices: Sequence[int]) -> BaselineRun:
        """The same run with the answers at these indices only."""
        return replace(self, answers=[self.answers[index] for index in indices])


@dataclass(frozen=True, slots=True)
class Prediction:
    """The speedup of a choice over all prompts together, with its interval over prompts, and the tokens and
    draft tokens per step and the survival by depth behind it. `measured` ones come from a run.
    """

    choice: Choice
    speedup: RatioEstimate
    tokens_per_step: float = 1.0
    draft_tokens_per_step: float = 0.0
    survival: tuple[float, ...] = ()
    measured: bool = False


NO_SPECULATION: Final = Prediction(BASELINE, RatioEstimate(1.0, 1.0, 1.0))


def lookup_choices() -> list[Choice]:
    """The choices without a draft model, which can be replayed. All of them draft from grammars too."""
    return [
        Choice("n-grams of the request", SpeculationConfig(drafters=("ngram", "grammar"))),
        Choice("suffixes of the request", SpeculationConfig()),
        Choice("suffixes of the request and of earlier answers", SpeculationConfig(share_outputs=True)),
    ]


def predict(choice: Choice, baseline: BaselineRun) -> Prediction:
    """Predict the speedup of a choice by a replay over non-speculative outputs."""
    costs = dict(sorted(baseline.costs.items()))
    cost = StepCost(list(costs), list(costs.values()))
    recorded = [replace(each, category=str(number)) for number, each in enumerate(baseline.answers)]

    def replay() -> Replay:
        drafter = _default_drafter(choice.config)
        return Replay(drafter, nodes=MAX_CHAIN_LENGTH, cost=cost, max_tokens=baseline.max_tokens)

    replay().run(recorded[:1])  # compiles, so that the timed replay does not
    if not (stats := list(replay().run(recorded).values())):
        raise UnreadablePrompts("every output is too short to replay: use prompts with longer outputs")
    num_steps = sum(each.num_steps for each in stats)
    by_depth = zip_longest(*(each.accepted[:MAX_DEPTH] for each in stats), fillvalue=0)
    return Prediction(
        choice,
        _speedup(stats, baseline.seconds_per_token, costs[1]),
        sum(each.num_tokens for each in stats) / num_steps,
        sum(each.num_draft_tokens for each in stats) / num_steps,
        tuple(sum(accepted) / num_steps for accepted in by_depth),
    )


def _speedup(stats: Sequence[ReplayStats], seconds_per_token: float, one_row: float) -> RatioEstimate:
    """The time of non-speculative decoding over the time of the replayed steps.

    Every step is charged the time that a non-speculative step takes beside the cost of its row. Each element
    of `stats` is one prompt; the interval is bootstrapped over prompts.
    """
    overhead = seconds_per_token - one_row + CONTROLLER_SECONDS
    baseline = np.array([each.num_tokens * seconds_per_token for each in stats])
    speculative = np.array(
        [each.step_seconds + each.draft_seconds + overhead * each.num_steps for each in stats]
    )
    return ratio_of_sums(baseline, speculative)


def _default_drafter(config: SpeculationConfig) -> Drafter:
    """The drafter of requests that do not choose one."""
    return next(iter(make_drafters(config, chain=True).values()))


def best(predictions: Sequence[Prediction]) -> Prediction:
    """The prediction to recommend: of those within `MIN_SPEEDUP` of the highest speedup, the one with the
    fewest requirements, or no speculation if the highest is below `MIN_SPEEDUP`.
    """
    highest = max(predictions, key=lambda each: each.speedup.value, default=NO_SPECULATION)
    if highest.speedup.value < MIN_SPEEDUP:
        return NO_SPECULATION
    near = [each for each in predictions if each.speedup.value * MIN_SPEEDUP >= highest.speedup.value]
    return min(near, key=lambda each: (_requirements(each.choice.config), -each.speedup.value))


def _requirements(config: SpeculationConfig) -> tuple[bool, bool]:
    """Sort key: a draft model weighs more than shared outputs."""
    return config.draft_model is not None, config.share_outputs
