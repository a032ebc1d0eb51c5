"""Advice from predictions and measurements that are known."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from forerun.bench.summary import RatioEstimate
from forerun.bench.systems import ServedModel
from forerun.bench.transcripts import Transcript
from forerun.cli.main import app
from forerun.config import SpeculationConfig
from forerun.errors import ServerFailed
from forerun.servers.streaming import StreamedAnswer
from forerun.tune.measure import Measured, MeasuredPair, serving
from forerun.tune.page import as_values, write_page
from forerun.tune.predict import NOTHING, PLAIN, BaselineRun, Choice, Prediction, best, lookups, predict
from forerun.tune.recommendation import Recommendation

FLAT = {rows: 0.05 + 0.0001 * rows for rows in (1, 2, 4, 8, 16, 32)}
STEEP = {rows: 0.05 * rows for rows in (1, 2, 4, 8, 16, 32)}


def repeating(num: int = 6) -> list[Transcript]:
    """Answers that say their prompts again."""
    random = np.random.default_rng(0)
    texts = [random.integers(10, 1000, 80) for _ in range(num)]
    return [Transcript("copies", text, text.copy()) for text in texts]


def novel(num: int = 6) -> list[Transcript]:
    """Answers in which nothing comes again."""
    return [
        Transcript("news", np.arange(100) + 1000 * at, np.arange(100) + 1000 * at + 500) for at in range(num)
    ]


def told(answers: list[Transcript], costs: dict[int, float], beside: float = 0.0) -> BaselineRun:
    """Answers of plain decoding whose steps take so long beside their pass."""
    return BaselineRun(answers, costs, costs[1] + beside, 200)


def test_where_text_repeats_and_guesses_are_free_lookups_gain() -> None:
    found = [predict(choice, told(repeating(), FLAT)) for choice in lookups()]
    chosen = best(found)
    assert chosen.gain.value > 4
    assert chosen.tokens_per_step > 4
    assert not chosen.choice.config.share_outputs, "it gains nothing here, so it is not asked for"
    assert chosen.survival[0] > chosen.survival[7] > 0


@pytest.mark.parametrize("costs", [FLAT, STEEP])
def test_where_nothing_repeats_plain_is_best(costs: dict[int, float]) -> None:
    found = [predict(choice, told(novel(), costs)) for choice in lookups()]
    assert best(found) is NOTHING
    assert all(0.9 < each.gain.value <= 1.0 for each in found), "and guessing anyway costs little"


def test_where_rows_cost_what_passes_cost_nothing_gains() -> None:
    assert best([predict(choice, told(repeating(), STEEP)) for choice in lookups()]) is NOTHING


def test_what_steps_take_beside_their_passes_is_saved_as_well() -> None:
    costs = {rows: 0.04 + 0.01 * rows for rows in FLAT}
    bare, heavy = (predict(lookups()[1], told(repeating(), costs, beside)) for beside in (0.0, 5.0))
    assert bare.tokens_per_step == heavy.tokens_per_step
    assert bare.gain.value < 0.6 * bare.tokens_per_step, "rows have their price"
    assert heavy.gain.value > 0.9 * heavy.tokens_per_step, "which is nothing beside what steps take"


def test_all_prompts_together_are_told_of() -> None:
    suffixes, few, many = lookups()[1], told(repeating(2), FLAT), told([*repeating(2), *novel(6)], FLAT)
    alone, among = predict(suffixes, few).gain.value, predict(suffixes, many).gain.value
    assert alone > 4
    assert 1.1 < among < 1.3, "those that gain nothing take most of the time"
    assert predict(suffixes, many.some([0, 1])).gain.value == pytest.approx(alone, rel=0.05)


def test_nobody_guesses_beyond_what_an_answer_can_have() -> None:
    text = np.random.default_rng(0).integers(10, 1000, 80)
    cut = [Transcript("copies", text, text[:20])]
    wide, bound = (
        predict(lookups()[1], replace(told(cut, FLAT), max_tokens=tokens)) for tokens in (1000, 20)
    )
    assert bound.tokens_per_step >= wide.tokens_per_step
    assert bound.guesses_per_step < wide.guesses_per_step


def answer(seconds: float, num: int = 21) -> StreamedAnswer:
    """Tokens that came evenly, so many seconds from the first to the last."""
    times = tuple(np.linspace(0.0, seconds, num))
    return StreamedAnswer(0.0, times, (1,) * num, "", tuple(range(num)), num_tokens=num)


def test_answers_of_other_lengths_are_compared_token_by_token() -> None:
    plain, ours = MeasuredPair(answer(2.0, 21), answer(2.0, 41)).seconds
    assert plain == pytest.approx(2.0)
    assert ours == pytest.approx(1.0)
    assert not MeasuredPair(answer(2.0, 3), answer(2.0)).is_timed


def sure(gain: float) -> RatioEstimate:
    return RatioEstimate(gain, gain, gain)


def test_who_needs_less_wins_unless_more_is_worth_it() -> None:
    model = Prediction(Choice("a model", SpeculationConfig(draft_model="x")), sure(2.05))
    shared = Prediction(Choice("answers", SpeculationConfig(share_outputs=True)), sure(2.05))
    own = Prediction(Choice("own text", SpeculationConfig()), sure(2.0))
    assert best([model, shared, own]) is own
    assert best([model, shared]) is shared
    assert best([Prediction(model.choice, sure(2.1)), own]).choice is model.choice
    worse = Prediction(Choice("own text, worse", SpeculationConfig()), sure(1.99))
    assert best([worse, own]) is own, "of two that need the same the better one, however little it is better"


def advice(gain: float, predicted: float, spread: float = 0.05, **given: int) -> Recommendation:
    chosen = Prediction(
        lookups()[1], RatioEstimate(predicted, 0.9 * predicted, 1.1 * predicted), 3.0, 4.0, (0.5, 0.25)
    )
    interval = RatioEstimate(gain, (1 - spread) * gain, (1 + spread) * gain)
    measured = Measured(interval, 30 * gain, 30.0, 3.0, 4.0, given.get("same", 12), 12)
    return Recommendation(
        chosen, [chosen], measured, FLAT, 24, 30.0, sure(predicted + 0.1), ("--enforce-eager",)
    )


def test_the_paragraph_says_what_to_use_and_how_sure_it_is() -> None:
    words = advice(2.4, 2.5).paragraph()
    assert words.startswith("Use suffixes of the request.")
    assert "2.40 [2.28, 2.52]" in words
    assert "2.60 [2.60, 2.60]" in words, "predicted for the prompts of the run"
    assert "2.50 [2.25, 2.75]" in words, "predicted for all prompts"
    assert "12 of 12" in words
    assert "no difference shown" not in words
    assert "near-ties" in advice(2.4, 2.5, same=11).paragraph()
    assert "75%" in advice(1.2, 1.2).paragraph()


def test_a_gain_whose_interval_contains_1_is_called_no_difference(tmp_path: Path) -> None:
    found = advice(1.04, 1.2, spread=0.1)
    assert "no difference shown" in found.paragraph()
    assert "no difference shown" in found.headline()
    assert "1.04 [0.94, 1.14]" in found.headline()
    assert "no difference shown" not in advice(1.2, 1.2).headline()


def test_predictions_have_intervals_over_the_prompts() -> None:
    mixed = predict(lookups()[1], told([*repeating(3), *novel(3)], FLAT)).gain
    assert mixed.low < mixed.value < mixed.high
    same = predict(lookups()[1], told(novel(6), FLAT)).gain
    assert same.high - same.low < 0.1 * (mixed.high - mixed.low)


def test_a_draft_model_was_tried_not_predicted() -> None:
    choice = Choice("the draft model x", SpeculationConfig(draft_model="x"))
    model = Prediction(choice, RatioEstimate(1.5, 1.4, 1.6), measured=True)
    words = replace(advice(1.4, 1.5), best=model, predictions=[model]).paragraph()
    assert "1.50 [1.40, 1.60]" in words
    assert "predicted" not in words


def test_a_real_run_that_refutes_the_prediction_ends_it() -> None:
    found = advice(0.97, 1.3)
    assert not found.worth_it
    assert found.paragraph().startswith("Do not speculate.")
    assert found.config == PLAIN.config
    assert found.config.max_draft == 0


def test_do_not_speculate_is_said_plainly(tmp_path: Path) -> None:
    found = Recommendation(
        NOTHING, [Prediction(lookups()[0], RatioEstimate(1.01, 0.99, 1.03))], None, FLAT, 24, 30.0
    )
    assert found.paragraph().startswith("Do not speculate.")
    assert "1.01 [0.99, 1.03]" in found.paragraph()
    assert as_values(found)["use"] == "plain"
    write_page(found, tmp_path / "page.html")
    assert "<h1>Do not speculate" in (tmp_path / "page.html").read_text()


def test_the_page_shows_predictions_the_real_run_and_the_flags_of_vllm(tmp_path: Path) -> None:
    write_page(advice(2.4, 2.5), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == 3
    assert "<h1>Use suffixes of the request" in text
    assert "vLLM flags: --enforce-eager" in text


def tune_words(folder: Path, **options: Path) -> list[str]:
    given = [word for name, path in options.items() for word in (f"--{name}", str(path))]
    return ["tune", str(folder), "--prompts", "code-editing", "--dtype", "float32", *given]


@pytest.mark.parametrize("option", ["output", "page"])
def test_an_output_that_cannot_be_written_fails_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    calls: list[object] = []
    monkeypatch.setattr("forerun.tune.run.recommend", lambda *given: calls.append(given))
    paths = {"output": tmp_path / "speculation.json", option: tmp_path / "missing" / "file"}
    found = CliRunner().invoke(app, tune_words(tmp_path, **paths))
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
    words = tune_words(tmp_path, output=tmp_path / "speculation.json")
    found = CliRunner().invoke(app, [*words, "--startup-timeout", "5", "--", "--enforce-eager"])
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


def test_the_last_line_serves_what_was_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.tune.run.recommend", lambda *_: advice(gain=1.9, predicted=1.8))
    output = tmp_path / "mine for chat.json"
    words = ["tune", str(tmp_path), "--prompts", "code-editing", "--dtype", "float32", "-o", str(output)]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    command = shlex.split(found.stdout.splitlines()[-1], comments=True)
    assert command == ["forerun", "serve", str(tmp_path), "--dtype", "float32", "--speculation", str(output)]
    served = CliRunner().invoke(app, [*command[1:], "--dry-run"])
    assert served.exit_code == 0, served.output
    assert f" serve {tmp_path} --dtype float32" in served.stdout
