"""One plain run, replays of everything that can be replayed, a short run of each draft model, and then a real
run of the best.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.bench.contestants import Model
from forerun.config import SpeculationConfig
from forerun.servers.endpoint import Endpoint
from forerun.tune.advice import Advice
from forerun.tune.measure import (
    Asked,
    Measured,
    answer_plainly,
    costs_of,
    measure,
    predicted_by,
    serving,
    spoken,
)
from forerun.tune.predict import NOTHING, Choice, Prediction, Watch, best, lookups, predict

TRIED = 6
"""Prompts that a draft model is tried with."""

VERIFIED = 12
"""Prompts of the real run."""


def advise(model: Model, asked: Asked, draft_models: Sequence[str], watch: Watch) -> Advice:
    """What to use for prompts like these."""
    watch("starting the server")
    with serving(model, SpeculationConfig()) as server:
        answers = answer_plainly(server, asked, watch)
        costs = costs_of(server, drawn=bool(asked.temperature))
        recorded = spoken(answers)
        predictions = [predict(choice, recorded, costs) for choice in lookups()]
        here = best(predictions)
        measured = None
        if here is not NOTHING and not draft_models and not here.choice.config.share_outputs:
            measured = _verify(server, asked, watch, here.choice.config.names[0])
    predictions += [_tried(model, asked, draft, watch) for draft in draft_models]
    chosen = best(predictions)
    if chosen is not NOTHING and measured is None:
        watch("starting the server again, as it would be")
        with serving(model, chosen.choice.config) as server:
            measured = _verify(server, asked, watch)
    speeds = [each.speed for each in answers if each.speed]
    return Advice(
        chosen,
        predictions,
        measured,
        costs,
        len(asked.questions),
        float(np.median(speeds)),
        chosen.over(asked.places(VERIFIED)),
    )


def _verify(server: Endpoint, asked: Asked, watch: Watch, drafter: str | None = None) -> Measured:
    """A real run over some of the prompts; by one drafter of the server's, if it has several."""
    wishes = {} if drafter is None else {"forerun_drafter": drafter}
    return measure(server, asked.some(VERIFIED), wishes, watch)


def _tried(model: Model, asked: Asked, draft: str, watch: Watch) -> Prediction:
    """What a draft model gains on some of the prompts."""
    choice = Choice(f"the draft model {draft}", SpeculationConfig(draft_model=draft))
    watch(f"starting the server with {draft}")
    with serving(model, choice.config) as server:
        return predicted_by(choice, measure(server, asked.some(TRIED), {}, watch))
