"""The output distribution of the real engine: 20,000 samples against exact probabilities.

A tiny model with a vocabulary of 16, temperature 1, three tokens per sample. The target's distribution is
known exactly, and a chi-square test compares the samples with it. vLLM's own speculation fails the same test
on a CPU (vllm#55005) with a quarter of the samples, which shows that the test can fail.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.chi_square import exact_probabilities, p_value
from e2e.engines import make_llamas, run_program
from forerun.config import SpeculationConfig
from forerun.engines.vllm.launch import engine_arguments

pytestmark = pytest.mark.e2e

NUM, VOCAB = 20_000, 16
PROMPT = [1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 3] * 3 + [1] * 4
"""Its end is followed by three different tokens elsewhere, so that n-gram counts are a distribution."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target model and a smaller draft model that resembles it."""
    pytest.importorskip("transformers", reason="needs the extra `local`")
    return make_llamas(tmp_path_factory.mktemp("models"), vocab_size=VOCAB, heads=2)


@pytest.fixture(scope="module")
def exact(models: tuple[Path, Path]) -> np.ndarray:
    """The probability of every three tokens after the prompt."""
    pytest.importorskip("transformers", reason="needs the extra `local`")
    return exact_probabilities(models[0], PROMPT)


def samples(
    models: tuple[Path, Path], request_options: dict[str, Any], options: dict[str, Any], num: int = NUM
) -> Any:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    arguments = (json.dumps(each) for each in (PROMPT, request_options, options))
    return run_program("distribution", models[0], str(num), *arguments)


def test_looked_up_drafts_leave_the_distribution_unchanged(
    models: tuple[Path, Path], exact: np.ndarray
) -> None:
    request_options = {name: {"forerun_drafter": name} for name in ("suffix", "ngram")}
    config = SpeculationConfig(adaptive=False, sampled=True)  # ngram samples, suffix does not
    emitted = samples(models, request_options, engine_arguments(config))
    for name in request_options:
        assert emitted[name]["accepted"] > 500, "draft tokens were accepted"
        assert p_value(emitted[name]["tokens"], exact) > 1e-3


def test_sampled_drafts_leave_the_distribution_unchanged(
    models: tuple[Path, Path], exact: np.ndarray
) -> None:
    config = SpeculationConfig(drafters=("suffix",), draft_model=str(models[1]), adaptive=False, max_draft=4)
    request_options = {"model": {"forerun_drafter": "model"}, "both": None}
    emitted = samples(models, request_options, engine_arguments(config))
    for name in request_options:
        assert emitted[name]["accepted"] > 2000, "draft tokens were accepted"
        assert p_value(emitted[name]["tokens"], exact) > 1e-3


def test_the_same_test_finds_the_defect_of_stock_vllm(models: tuple[Path, Path], exact: np.ndarray) -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
    stock = samples(models, {"stock": None}, {"speculative_config": ngram}, NUM // 4)["stock"]
    assert p_value(stock["tokens"], exact) < 1e-9
