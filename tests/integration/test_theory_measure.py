"""Measured acceptance against the engine's own verification, and the figures of `forerun theory measure`."""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from forerun.cli.main import app
from forerun.core import theory
from forerun.drafters.draft_model import ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.engines.local.request import Request
from forerun.errors import ConfigurationError
from forerun.models.runner import Runner
from forerun.theory.acceptance import TextAcceptance, measure_acceptance, summarize_acceptance
from forerun.theory.draft_distributions import (
    CountedDistribution,
    LookupDistribution,
    ModelDistribution,
    UniformDistribution,
)
from forerun.theory.measure import MeasurementPlan
from forerun.theory.speeds import BASELINE, RANDOM, DecodeTime, RandomDrafter, compare_speeds, time_decoding
from forerun.theory.target_text import TargetText, TokenPrompt, generate_texts
from forerun.types import SamplingParams
from integration.local_models import VOCAB, generate, make_draft_model, make_engine

PROMPTS = [TokenPrompt("a", (1, 2, 3)), TokenPrompt("b", (4, 5, 6, 7))]


@pytest.fixture
def target(tiny_llama: Any) -> Runner:
    return Runner(copy.deepcopy(tiny_llama), num_slots=4, max_length=128)


@pytest.fixture
def draft(tiny_llama: Any) -> ModelDistribution:
    return ModelDistribution("draft", draft_runner(tiny_llama), VOCAB)


def draft_runner(tiny_llama: Any, noise: float = 0.05) -> Runner:
    return Runner(make_draft_model(tiny_llama, noise), num_slots=4, max_length=128)


def texts_of(tiny_llama: Any, temperature: float, num: int = 4, max_tokens: int = 24) -> list[TargetText]:
    engine = make_engine(tiny_llama, {"ngram": NgramDrafter()})
    return generate_texts(engine, PROMPTS * num, temperature, max_tokens)


@torch.inference_mode()
def softmax_along(model: Any, text: TargetText) -> np.ndarray:
    """The model's distributions at the positions of an output, by transformers alone."""
    tokens = torch.tensor([[*text.prompt.tokens, *text.output[:-1]]])
    logits = model(tokens, use_cache=False).logits[0, -len(text.output) :]
    return torch.softmax(logits.double(), -1).numpy()


def test_acceptance_is_the_overlap_at_every_position(
    tiny_llama: Any, target: Runner, draft: ModelDistribution
) -> None:
    draft_model = make_draft_model(tiny_llama)
    for text in texts_of(tiny_llama, 1.0):
        p, q = softmax_along(tiny_llama, text), softmax_along(draft_model, text)
        uniform = UniformDistribution()
        by_model, at_random = measure_acceptance(target, [draft, uniform], text)
        assert by_model.alphas[1.0] == pytest.approx(np.minimum(p, q).sum(-1), abs=1e-5)
        assert at_random.alphas[1.0] == pytest.approx(np.minimum(p, 1 / VOCAB).sum(-1), abs=1e-5)
        assert by_model.alphas[0.5] == pytest.approx(np.minimum(p / 0.5, q).sum(-1), abs=1e-5)
        rows = np.arange(len(text.output))
        given = np.minimum(1, q[rows, text.output] / p[rows, text.output])
        assert by_model.given_token == pytest.approx(given, abs=1e-4)
        assert (by_model.coupled <= by_model.alphas[1.0] + 1e-9).all()


def test_greedy_acceptance_is_one_where_the_most_likely_tokens_agree(
    tiny_llama: Any, target: Runner, draft: ModelDistribution
) -> None:
    draft_model = make_draft_model(tiny_llama)
    found = []
    for text in texts_of(tiny_llama, 0.0, num=1):
        (one,) = measure_acceptance(target, [draft], text)
        p, q = softmax_along(tiny_llama, text), softmax_along(draft_model, text)
        agree = p.argmax(-1) == q.argmax(-1)
        assert one.alphas[1.0].tolist() == agree.tolist()
        assert one.coupled.tolist() == agree.tolist()
        likely = np.take_along_axis(p, q.argmax(-1)[:, None], 1)[:, 0] >= 0.3 * p.max(-1)
        assert one.alphas[0.3].tolist() == likely.tolist()
        found += agree.tolist()
    assert 0.1 < np.mean(found) < 0.95, "some agree and some do not"


def test_a_draft_equal_to_the_target_is_always_accepted(tiny_llama: Any, target: Runner) -> None:
    same = ModelDistribution("same", Runner(copy.deepcopy(tiny_llama), num_slots=4, max_length=128), VOCAB)
    for temperature in (0.0, 1.0):
        found = [
            each
            for text in texts_of(tiny_llama, temperature, num=1)
            for each in measure_acceptance(target, [same], text)
        ]
        summary = summarize_acceptance(found)
        assert {row["category"] for row in summary} == {"a", "b", "all"}
        assert [row["alpha"] for row in summary] == pytest.approx([1.0] * 3, abs=1e-5)
        assert [row["coupled"] for row in summary] == pytest.approx([1.0] * 3, abs=1e-4)


def expected_and_measured_steps(
    tiny_llama: Any, acceptance: list[TextAcceptance], draft_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """The steps of each output, by its acceptance, and of the engine's output for the same prompt."""
    expected = [theory.expected_steps(each.given_token.tolist(), draft_length) for each in acceptance]
    drafter = ModelDrafter(draft_runner(tiny_llama), VOCAB, rng=np.random.default_rng(7))
    engine = make_engine(tiny_llama, {"model": drafter}, trees=False, verifier="rejection")
    requests = [
        Request(
            str(number),
            each.text.prompt.tokens,
            len(each.text.output),
            SamplingParams(temperature=each.text.temperature),
            max_draft=draft_length,
        )
        for number, each in enumerate(acceptance)
    ]
    results = generate(engine, requests)
    return np.array(expected), np.array([each.stats.num_steps for each in results])


def test_greedy_steps_are_those_of_the_engine(
    tiny_llama: Any, target: Runner, draft: ModelDistribution
) -> None:
    texts = texts_of(tiny_llama, 0.0, num=1)
    acceptance = [each for text in texts for each in measure_acceptance(target, [draft], text)]
    expected, measured = expected_and_measured_steps(tiny_llama, acceptance, 3)
    assert measured.tolist() == pytest.approx(expected.tolist())


@pytest.mark.parametrize("draft_length", [1, 3])
def test_expected_steps_are_those_of_the_engine(
    tiny_llama: Any, target: Runner, draft: ModelDistribution, draft_length: int
) -> None:
    """Four standard errors over 120 outputs, which another acceptance does not keep."""
    texts = texts_of(tiny_llama, 1.0, num=60, max_tokens=32)
    acceptance = [each for text in texts for each in measure_acceptance(target, [draft], text)]
    expected, measured = expected_and_measured_steps(tiny_llama, acceptance, draft_length)
    error = 4 * np.sqrt((expected.var() + measured.var()) / len(expected))
    assert abs(measured.mean() - expected.mean()) < error
    always = theory.expected_steps([0.97] * 32, draft_length)
    assert abs(measured.mean() - always) > error


def test_lookup_drafters_are_asked_at_every_position(tiny_llama: Any, target: Runner) -> None:
    text = TargetText(PROMPTS[0], (1, 2, 3, 1, 2), 0.0)
    q = LookupDistribution("ngram", NgramDrafter()).rows(text, torch.zeros(5, VOCAB))
    assert q.argmax(-1).tolist()[1:] == [2, 3, 1, 2]
    assert q.sum(-1).tolist() == [0, 1, 1, 1, 1]


def test_counts_leave_the_text_itself_out() -> None:
    texts = [
        TargetText(TokenPrompt("a", (1,)), (2, 3, 2), 1.0),
        TargetText(TokenPrompt("b", (1,)), (2, 2), 1.0),
        TargetText(TokenPrompt("b", (5,)), (4, 4, 4, 4), 1.0),
    ]
    logits = torch.zeros(2, 6)
    unigrams = CountedDistribution("unigram", texts, bigrams=False).rows(texts[1], logits)
    expected = [[0, Fraction(1, 9), Fraction(2, 9), Fraction(1, 9), Fraction(4, 9), Fraction(1, 9)]] * 2
    assert unigrams.numpy() == pytest.approx(np.array(expected, dtype=float), abs=1e-6)
    bigrams = CountedDistribution("bigram", texts, bigrams=True).rows(texts[1], logits)
    assert bigrams[0].tolist() == [0, 0, 1, 0, 0, 0]  # after 1, the first text has 2
    assert bigrams[1].tolist() == [0, 0, 0, 1, 0, 0]  # after 2, the first text has 3
    without_pair = CountedDistribution("bigram", texts, bigrams=True).rows(texts[2], torch.zeros(4, 6))
    assert without_pair[0].tolist() == pytest.approx([0, 2 / 7, 4 / 7, 1 / 7, 0, 0])  # unigrams


def flat_acceptance(factor: float) -> TextAcceptance:
    positions = np.full(401, factor)
    text = TargetText(PROMPTS[0], tuple(range(401)), 1.0)
    return TextAcceptance("model", text, {1.0: positions}, {}, positions, positions)


def test_predictions_follow_from_costs_and_acceptance() -> None:
    """A step of 10 ms; 2 ms of drafts for two tokens; verifying them takes 11 ms."""
    times = {
        BASELINE: [DecodeTime(100, 100, 1.0)] * 2,
        (RANDOM, 2): [DecodeTime(100, 100, 1.1, 0.0)] * 2,
        ("model", 2): [DecodeTime(100, 50, 0.65, 0.1)] * 2,
    }
    (row,) = compare_speeds("model", 1.0, times, [flat_acceptance(0.5)])
    assert (row["c"], row["verification"]) == (pytest.approx(0.1), pytest.approx(1.1))
    assert row["tokens_per_step"] == 2
    assert row["expected_tokens_by_mean"] == 1.75
    assert row["expected_tokens_by_position"] == pytest.approx(1.75, rel=0.01)
    assert row["theorem"] == pytest.approx(1.75 / 1.2)
    assert row["theorem_with_verification"] == pytest.approx(1.75 / 1.3)
    assert row["predicted"] == pytest.approx(1.75 / 1.3, rel=0.01)
    assert row["measured"] == pytest.approx(1 / 0.65)


def test_every_run_of_a_prompt_is_timed(tiny_llama: Any) -> None:
    engines = {
        name: make_engine(tiny_llama, {name: drafter}, trees=False, length=64)
        for name, drafter in (("ngram", NgramDrafter()), (RANDOM, RandomDrafter(VOCAB)))
    }
    seen = []
    times = time_decoding(engines, PROMPTS, [2], 0.0, 12, lambda done, total: seen.append((done, total)))
    assert times.keys() == {BASELINE, ("ngram", 2), (RANDOM, 2)}
    assert all(len(runs) == 2 for runs in times.values())
    assert {run.num_tokens for run in times[BASELINE]} == {11}
    assert {run.num_steps for run in times[BASELINE]} == {11}
    assert all(run.draft_seconds < 0.01 * run.seconds for run in times[BASELINE])
    assert all(run.draft_seconds > 0 for run in times["ngram", 2])
    assert seen == [(number, 9) for number in range(1, 10)]


def test_an_unknown_draft_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected the directory of a draft model, ngram or suffix"):
        MeasurementPlan("target", ("ngarm",))


def test_the_command_measures_a_real_model(smollm2: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "Count to ten.", "category": "counting"},
        {"prompt": "Say hello.", "category": "chat"},
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    figure = tmp_path / "figure.svg"
    command = ["theory", "measure", "--target", str(smollm2), "--prompts", str(prompts), "--draft", "ngram"]
    options = ["--max-tokens", "12", "--draft-length", "2", "--dtype", "float32", "--plot", str(figure)]
    result = CliRunner().invoke(app, [*command, *options, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {row["draft"] for row in found["acceptance"]} == {"ngram", "bigram", "unigram", "uniform"}
    assert {row["category"] for row in found["acceptance"]} == {"counting", "chat", "all"}
    assert [(row["temperature"], row["draft_length"]) for row in found["speeds"]] == [(0, 2), (1, 2)]
    assert all(row["measured"] > 0 for row in found["speeds"])
    assert {row["lenience"] for row in found["lenience"]} == {1.0, 0.5, 0.3, 0.1}
    assert "<svg" in figure.read_text()
