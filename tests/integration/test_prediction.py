"""Predicted outputs in the local engine: fewer steps where they come true, the same output everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.drafters.predicted_output import PredictionDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engines.local.engine import Engine
from forerun.engines.local.request import Request, Result
from forerun.errors import InvalidRequest
from forerun.types import Drafter, SamplingParams
from integration.local_models import VOCAB, make_engine

PROMPT = (5, 9, 2, 7, 7, 1, 3)
SAMPLINGS = [SamplingParams(temperature=0.0), SamplingParams(temperature=0.9, seed=4)]


def run(engine: Engine, *requests: Request) -> dict[str, Result]:
    for request in requests:
        engine.add(request)
    return {update.id: update.result for update in engine.stream() if update.result is not None}


def make(model: Any) -> Engine:
    drafters: dict[str, Drafter] = {"suffix": SuffixDrafter(), "prediction": PredictionDrafter()}
    return make_engine(model, drafters, default_drafters=("suffix",), adaptive=False)


def request(name: str, sampling: SamplingParams, **settings: Any) -> Request:
    return Request(name, PROMPT, max_tokens=40, sampling=sampling, ignore_end=True, **settings)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
def test_a_prediction_changes_the_number_of_steps_and_not_the_output(
    tiny_llama: Any, sampling: SamplingParams
) -> None:
    engine = make(tiny_llama)
    expected = run(engine, request("alone", sampling, max_draft=0))["alone"].token_ids
    wrong = tuple(VOCAB - 1 - token for token in expected)
    edited = (*expected[:10], wrong[10], *expected[11:])
    found = run(
        engine,
        request("right", sampling, prediction=expected),
        request("edited", sampling, prediction=edited),
        request("wrong", sampling, prediction=wrong),
        request("none", sampling),
    )
    assert {result.token_ids for result in found.values()} == {expected}
    steps = {name: result.stats.num_steps for name, result in found.items()}
    assert steps["right"] <= 2
    assert steps["edited"] <= 4
    assert "prediction" not in found["none"].stats.by_drafter
    assert found["right"].stats.by_drafter["prediction"].num_accepted >= 38


def test_a_request_that_names_its_drafter_uses_no_other(tiny_llama: Any) -> None:
    engine = make(tiny_llama)
    greedy = SAMPLINGS[0]
    expected = run(engine, request("alone", greedy, max_draft=0))["alone"].token_ids
    named = request("named", greedy, prediction=expected, drafters=("suffix",))
    assert set(run(engine, named)["named"].stats.by_drafter) <= {"suffix"}
    only = request("only", greedy, prediction=expected, drafters=("prediction",))
    assert set(run(engine, only)["only"].stats.by_drafter) == {"prediction"}


def test_a_token_outside_the_vocabulary_is_named(tiny_llama: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"the prediction has token {VOCAB}"):
        make(tiny_llama).add(request("a", SAMPLINGS[0], prediction=(VOCAB,)))
