"""One plain run, replays of everything that can be replayed, a short run of each draft model, and then a real
run of the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from forerun.bench.systems import ServedModel, flags_of
from forerun.config import SpeculationConfig
from forerun.servers.endpoint import Endpoint
from forerun.tune.measure import (
    DecodingMode,
    Measured,
    TuningPrompts,
    measure,
    measure_baseline,
    predicted_by,
    serving,
    warm_up,
    way_of,
)
from forerun.tune.predict import NOTHING, Choice, Prediction, Watch, best, lookups, predict
from forerun.tune.recommendation import Recommendation

FEWEST: Final = 6
"""Prompts of the real run, at least: of many prompts it is every second. Draft models are tried with every
second of those.
"""


def recommend(
    model: ServedModel, asked: TuningPrompts, draft_models: Sequence[str], watch: Watch
) -> Recommendation:
    """What to use for prompts like these."""
    verified = asked.places(max(FEWEST, len(asked.questions) // 2))
    tried = verified[::2]
    watch("starting the server")
    with serving(model, SpeculationConfig(share_outputs=True)) as server:
        told, speed = measure_baseline(server, asked, watch)
        judged = told.some(tried) if draft_models else told  # all choices by the same prompts
        predictions = [predict(choice, judged) for choice in lookups()]
        chosen, measured = best(predictions), None
        if chosen is not NOTHING and not draft_models:
            measured = _verify(server, asked.at(verified), way_of(chosen.choice), watch)
    predictions += [_tried(model, asked.at(tried), draft, watch) for draft in draft_models]
    chosen = best(predictions)
    if chosen is not NOTHING and measured is None:
        watch("starting the server again, as it would be")
        with serving(model, chosen.choice.config) as server:
            measured = _verify(server, asked.at(verified), way_of(chosen.choice), watch)
    known = chosen.measured or chosen is NOTHING
    expected = chosen.gain if known else predict(chosen.choice, told.some(verified)).gain
    num = len(asked.questions)
    flags = tuple(flags_of(model))
    return Recommendation(chosen, predictions, measured, dict(told.costs), num, speed, expected, flags)


def _verify(server: Endpoint, asked: TuningPrompts, way: DecodingMode, watch: Watch) -> Measured:
    """A real run."""
    warm_up(server, asked, way, watch)
    return measure(server, asked, way, watch)


def _tried(model: ServedModel, asked: TuningPrompts, draft: str, watch: Watch) -> Prediction:
    """What a draft model gains."""
    choice = Choice(f"the draft model {draft}", SpeculationConfig(draft_model=draft))
    watch(f"starting the server with {draft}")
    with serving(model, choice.config) as server:
        return predicted_by(choice, _verify(server, asked, way_of(choice), watch))
