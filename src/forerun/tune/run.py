"""The tuning procedure: a non-speculative run, replays of every lookup drafter, a short run of each draft
model, then a measured run of the best choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from forerun.bench.served_model import ServedModel, vllm_server_flags
from forerun.config import SpeculationConfig
from forerun.engines.vllm.precision import served_dtype
from forerun.servers.endpoint import Endpoint
from forerun.tune.measure import Measured, measure, measure_baseline, prediction_from_run, serving, warm_up
from forerun.tune.predict import (
    NO_SPECULATION,
    Choice,
    Prediction,
    ReportProgress,
    best,
    lookup_choices,
    predict,
)
from forerun.tune.recommendation import Recommendation
from forerun.tune.workload import DecodingMode, TuningPrompts, mode_of

MIN_PROMPTS: Final = 6
"""Prompts of the measured run, at least; with more prompts it uses every second. Draft models run on every
second of those.
"""


def recommend(
    model: ServedModel, prompts: TuningPrompts, draft_models: Sequence[str], report_progress: ReportProgress
) -> Recommendation:
    """Recommend a configuration for prompts like these."""
    validation = prompts.spread_indices(max(MIN_PROMPTS, len(prompts.questions) // 2))
    trial = validation[::2]
    report_progress("starting the server")
    with serving(model, SpeculationConfig(share_outputs=True)) as server:
        baseline, speed = measure_baseline(server, prompts, report_progress)
        replayed = baseline.select(trial) if draft_models else baseline  # the same prompts for all choices
        predictions = [predict(choice, replayed) for choice in lookup_choices()]
        chosen, measured = best(predictions), None
        if chosen is not NO_SPECULATION and not draft_models:
            measured = _measure(server, prompts.select(validation), mode_of(chosen.choice), report_progress)
    predictions += [_try_draft(model, prompts.select(trial), each, report_progress) for each in draft_models]
    chosen = best(predictions)
    if chosen is not NO_SPECULATION and measured is None:
        report_progress("starting the server with the recommended configuration")
        with serving(model, chosen.choice.config) as server:
            measured = _measure(server, prompts.select(validation), mode_of(chosen.choice), report_progress)
    is_known = chosen.measured or chosen is NO_SPECULATION
    predicted = chosen.speedup if is_known else predict(chosen.choice, baseline.select(validation)).speedup
    num = len(prompts.questions)
    flags = tuple(vllm_server_flags(model))
    return Recommendation(
        chosen,
        predictions,
        measured,
        dict(baseline.costs),
        num,
        speed,
        predicted,
        flags,
        served_dtype(str(model.path), flags),
    )


def _measure(
    server: Endpoint, prompts: TuningPrompts, mode: DecodingMode, report_progress: ReportProgress
) -> Measured:
    """Warm up, then measure."""
    warm_up(server, prompts, mode, report_progress)
    return measure(server, prompts, mode, report_progress)


def _try_draft(
    model: ServedModel, prompts: TuningPrompts, draft: str, report_progress: ReportProgress
) -> Prediction:
    """Measure a draft model."""
    choice = Choice(f"the draft model {draft}", SpeculationConfig(draft_model=draft))
    report_progress(f"starting the server with {draft}")
    with serving(model, choice.config) as server:
        return prediction_from_run(choice, _measure(server, prompts, mode_of(choice), report_progress))
