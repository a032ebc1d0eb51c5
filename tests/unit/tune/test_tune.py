"""Recommendations from known predictions and measurements."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from forerun.bench.ratios import RatioEstimate
from forerun.bench.served_model import ServedModel
from forerun.bench.transcripts import Transcript
from forerun.cli.main import app
from forerun.config import SpeculationConfig
from forerun.errors import ServerFailed
from forerun.servers.streaming import StreamedAnswer
from forerun.tune.measure import Measured, MeasuredPair, serving
from forerun.tune.page import as_values, write_page
from forerun.tune.predict import (
    BASELINE,
    NO_SPECULATION,
    BaselineRun,
    Choice,
    Prediction,
    best,
    lookup_choices,
    predict,
)
from forerun.tune.recommendation import Recommendation

FLAT = {rows: 0.05 + 0.0001 * rows for rows in (1, 2, 4, 8, 16, 32)}
STEEP = {rows: 0.05 * rows for rows in (1, 2, 4, 8, 16, 32)}


def repeating(num: int = 6) -> list[Transcript]:
    """Outputs that repeat their prompts."""
    random = np.random.default_rng(0)
    texts = [random.integers(10, 1000, 80) for _ in range(num)]
    return [Transcript("copies", text, text.copy()) for text in texts]


def novel(num: int = 6) -> list[Transcript]:
    """Outputs without any repetition."""
    return [
        Transcript("news", np.arange(100) + 1000 * at, np.arange(100) + 1000 * at + 500) for at in range(num)
    ]


def baseline_run(answers: list[Transcript], costs: dict[int, float], overhead: float = 0.0) -> BaselineRun:
    """A baseline run whose steps take `overhead` seconds more than their rows cost."""
    return BaselineRun(answers, costs, costs[1] + overhead, 200)


def test_lookup_drafters_are_fast_where_text_repeats_and_verification_is_free() -> None:
    found = [predict(choice, baseline_run(repeating(), FLAT)) for choice in lookup_choices()]
    chosen = best(found)
    assert chosen.speedup.value > 4
    assert chosen.tokens_per_step > 4
    assert not chosen.choice.config.share_outputs, "sharing gains nothing here, so it is not recommended"
    assert chosen.survival[0] > chosen.survival[7] > 0


@pytest.mark.parametrize("costs", [FLAT, STEEP])
def test_no_speculation_is_best_where_nothing_repeats(costs: dict[int, float]) -> None:
    found = [predict(choice, baseline_run(novel(), costs)) for choice in lookup_choices()]
    assert best(found) is NO_SPECULATION
    assert all(0.9 < each.speedup.value <= 1.0 for each in found), "speculation costs little"


def test_no_speculation_is_best_where_a_row_costs_as_much_as_a_step() -> None:
    assert (
        best([predict(choice, baseline_run(repeating(), STEEP)) for choice in lookup_choices()])
        is NO_SPECULATION
    )


def test_the_overhead_of_saved_steps_is_saved_too() -> None:
    costs = {rows: 0.04 + 0.01 * rows for rows in FLAT}
    bare, heavy = (
        predict(lookup_choices()[1], baseline_run(repeating(), costs, overhead)) for overhead in (0.0, 5.0)
    )
    assert bare.tokens_per_step == heavy.tokens_per_step
    assert bare.speedup.value < 0.6 * bare.tokens_per_step, "rows are expensive"
    assert heavy.speedup.value > 0.9 * heavy.tokens_per_step, "rows cost little compared with the overhead"


def test_the_predicted_speedup_is_over_all_prompts_together() -> None:
    suffixes, few, many = (
        lookup_choices()[1],
        baseline_run(repeating(2), FLAT),
        baseline_run([*repeating(2), *novel(6)], FLAT),
    )
    alone, among = predict(suffixes, few).speedup.value, predict(suffixes, many).speedup.value
    assert alone > 4
    assert 1.1 < among < 1.3, "prompts without speedup take most of the time"
    assert predict(suffixes, many.select([0, 1])).speedup.value == pytest.approx(alone, rel=0.05)


def test_no_draft_extends_beyond_max_tokens() -> None:
    text = np.random.default_rng(0).integers(10, 1000, 80)
    cut = [Transcript("copies", text, text[:20])]
    wide, bound = (
        predict(lookup_choices()[1], replace(baseline_run(cut, FLAT), max_tokens=tokens))
        for tokens in (1000, 20)
    )
    assert bound.tokens_per_step >= wide.tokens_per_step
    assert bound.draft_tokens_per_step < wide.draft_tokens_per_step


def answer(seconds: float, num: int = 21) -> StreamedAnswer:
    """Evenly spaced tokens, `seconds` from the first to the last."""
    times = tuple(np.linspace(0.0, seconds, num))
    return StreamedAnswer(0.0, times, (1,) * num, "", tuple(range(num)), num_tokens=num)


def test_outputs_of_different_lengths_are_compared_per_token() -> None:
    baseline, speculative = MeasuredPair(answer(2.0, 21), answer(2.0, 41)).seconds
    assert baseline == pytest.approx(2.0)
    assert speculative == pytest.approx(1.0)
    assert not MeasuredPair(answer(2.0, 3), answer(2.0)).is_timed


def sure(gain: float) -> RatioEstimate:
    return RatioEstimate(gain, gain, gain)


def test_the_choice_with_fewer_requirements_wins_unless_another_is_clearly_faster() -> None:
    model = Prediction(Choice("a model", SpeculationConfig(draft_model="x")), sure(2.05))
    shared = Prediction(Choice("answers", SpeculationConfig(share_outputs=True)), sure(2.05))
    own = Prediction(Choice("own text", SpeculationConfig()), sure(2.0))
    assert best([model, shared, own]) is own
    assert best([model, shared]) is shared
    assert best([Prediction(model.choice, sure(2.1)), own]).choice is model.choice
    worse = Prediction(Choice("own text, worse", SpeculationConfig()), sure(1.99))
    assert best([worse, own]) is own, "with equal requirements the faster one wins"


def advice(
    gain: float, predicted: float, spread: float = 0.05, dtype: str | None = "float32", **given: int
) -> Recommendation:
    chosen = Prediction(
        lookup_choices()[1], RatioEstimate(predicted, 0.9 * predicted, 1.1 * predicted), 3.0, 4.0, (0.5, 0.25)
    )
    interval = RatioEstimate(gain, (1 - spread) * gain, (1 + spread) * gain)
    measured = Measured(interval, 30 * gain, 30.0, 3.0, 4.0, given.get("num_identical", 12), 12)
    return Recommendation(
        chosen, [chosen], measured, FLAT, 24, 30.0, sure(predicted + 0.1), ("--enforce-eager",), dtype
    )


@pytest.mark.parametrize(
    ("dtype", "is_exact"), [("float32", True), ("bfloat16", False), ("float16", False), (None, False)]
)
def test_the_paragraph_promises_what_holds_in_the_dtype(dtype: str | None, is_exact: bool) -> None:
    found = advice(2.4, 2.5, dtype=dtype)
    assert ("near-tie" not in found.paragraph()) == is_exact
    assert (dtype or "float16") in found.paragraph()
    assert as_values(found)["dtype"] == dtype
    invariant = replace(found, vllm_flags=("--invariant",)).paragraph()
    assert "bit for bit" in invariant
    assert "near-tie" not in invariant


def test_the_paragraph_has_the_choice_and_every_ratio_with_its_interval() -> None:
    text = advice(2.4, 2.5).paragraph()
    assert text.startswith("Use suffixes of the request.")
    assert "2.40 [2.28, 2.52]" in text
    assert "2.60 [2.60, 2.60]" in text, "predicted for the prompts of the run"
    assert "2.50 [2.25, 2.75]" in text, "predicted for all prompts"
    assert "12 of 12" in text
    assert "no difference shown" not in text
    assert "near-ties" in advice(2.4, 2.5, num_identical=11).paragraph()
    assert "75%" in advice(1.2, 1.2).paragraph()


def test_a_speedup_whose_interval_contains_1_is_called_no_difference(tmp_path: Path) -> None:
    found = advice(1.04, 1.2, spread=0.1)
    assert "no difference shown" in found.paragraph()
    assert "no difference shown" in found.headline()
    assert "1.04 [0.94, 1.14]" in found.headline()
    assert "no difference shown" not in advice(1.2, 1.2).headline()


def test_predictions_have_intervals_over_the_prompts() -> None:
    mixed = predict(lookup_choices()[1], baseline_run([*repeating(3), *novel(3)], FLAT)).speedup
    assert mixed.low < mixed.value < mixed.high
    same = predict(lookup_choices()[1], baseline_run(novel(6), FLAT)).speedup
    assert same.high - same.low < 0.1 * (mixed.high - mixed.low)


def test_the_speedup_of_a_draft_model_is_measured_not_predicted() -> None:
    choice = Choice("the draft model x", SpeculationConfig(draft_model="x"))
    model = Prediction(choice, RatioEstimate(1.5, 1.4, 1.6), measured=True)
    text = replace(advice(1.4, 1.5), best=model, predictions=[model]).paragraph()
    assert "1.50 [1.40, 1.60]" in text
    assert "predicted" not in text


def test_a_measured_run_can_refute_the_prediction() -> None:
    found = advice(0.97, 1.3)
    assert not found.should_speculate
    assert found.paragraph().startswith("Do not speculate.")
    assert found.config == BASELINE.config
    assert found.config.max_draft == 0


def test_without_a_predicted_speedup_the_advice_is_not_to_speculate(tmp_path: Path) -> None:
    found = Recommendation(
        NO_SPECULATION,
        [Prediction(lookup_choices()[0], RatioEstimate(1.01, 0.99, 1.03))],
        None,
        FLAT,
        24,
        30.0,
    )
    assert found.paragraph().startswith("Do not speculate.")
    assert "1.01 [0.99, 1.03]" in found.paragraph()
    assert as_values(found)["use"] == BASELINE.name
    write_page(found, tmp_path / "page.html")
    assert "<h1>Do not speculate" in (tmp_path / "page.html").read_text()


def test_the_page_has_all_figures_and_the_vllm_flags(tmp_path: Path) -> None:
    write_page(advice(2.4, 2.5), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == 3
    assert "<h1>Use suffixes of the request" in text
    assert "vLLM flags: --enforce-eager" in text


def tune_arguments(folder: Path, **options: Path) -> list[str]:
    given = [each for name, path in options.items() for each in (f"--{name}", str(path))]
    return ["tune", str(folder), "--prompts", "code-editing", "--dtype", "float32", *given]


@pytest.mark.parametrize("option", ["output", "report"])
def test_an_output_that_cannot_be_written_fails_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    calls: list[object] = []
    monkeypatch.setattr("forerun.tune.run.recommend", lambda *given: calls.append(given))
    paths = {"output": tmp_path / "speculation.json", option: tmp_path / "missing" / "file"}
    found = CliRunner().invoke(app, tune_arguments(tmp_path, **paths))
    assert found.exit_code == 1
    assert not calls
    assert str(tmp_path / "missing" / "file") in found.stderr


def test_flags_after_two_dashes_reach_the_servers_and_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[ServedModel] = []

    def advise(model: ServedModel, *_: object) -> Recommendation:
        models.append(model)
        return advice(gain=1.9, predicted=1.8)

    monkeypatch.setattr("forerun.tune.run.recommend", advise)
    text = tune_arguments(tmp_path, output=tmp_path / "speculation.json")
    found = CliRunner().invoke(app, [*text, "--startup-timeout", "5", "--", "--enforce-eager"])
    assert found.exit_code == 0, found.output
    assert (models[0].vllm_flags, models[0].startup_timeout) == (("--enforce-eager",), 5)
    assert "--enforce-eager" in found.stdout.splitlines()[-1]


def test_the_log_of_a_server_that_fails_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [sys.executable, "-c", "raise ValueError('no such model')"]
    monkeypatch.setattr("forerun.tune.measure.forerun_command", lambda *_: fails)
    with (
        pytest.raises(ServerFailed, match="ValueError: no such model") as failure,
        serving(ServedModel(tmp_path), SpeculationConfig()),
    ):
        pass
    log = Path(re.findall(r"\S+\.log", str(failure.value))[0])
    assert "Traceback" in log.read_text()
    log.unlink()


def test_the_last_line_is_a_command_that_serves_the_recommendation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.tune.run.recommend", lambda *_: advice(gain=1.9, predicted=1.8))
    output = tmp_path / "mine for chat.json"
    text = ["tune", str(tmp_path), "--prompts", "code-editing", "--dtype", "float32", "-o", str(output)]
    found = CliRunner().invoke(app, text)
    assert found.exit_code == 0, found.output
    command = shlex.split(found.stdout.splitlines()[-1], comments=True)
    assert command == ["forerun", "serve", str(tmp_path), "--dtype", "float32", "--speculation", str(output)]
    served = CliRunner().invoke(app, [*command[1:], "--dry-run"])
    assert served.exit_code == 0, served.output
    assert f" serve {tmp_path} --dtype float32" in served.stdout
