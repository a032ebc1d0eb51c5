"""Unseeded requests on the bench follow the target's distribution, with async scheduling.

A vocabulary of 16, temperature 1, three tokens per sample; `scripts/parity_v2.py --distribution` takes 20,000
samples.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from e2e.chi_square import exact_probabilities, p_value
from v2_bench.distribution import PROMPT, make_models, sample
from v2_bench.parity import Drafter

pytest.importorskip("vllm", reason="needs vLLM: make setup")
pytest.importorskip("transformers", reason="needs the extra `local`")

pytestmark = pytest.mark.e2e

NUM = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder


@pytest.fixture(scope="module")
def exact(folder: Path) -> np.ndarray:
    return exact_probabilities(folder / "target", PROMPT)


@pytest.mark.parametrize("drafter", [pytest.param("lookup", marks=pytest.mark.full), "draft_model"])
def test_drafts_leave_the_distribution_unchanged(folder: Path, exact: np.ndarray, drafter: Drafter) -> None:
    found = sample(folder, "async", drafter, NUM)
    assert found["is_async"]
    assert found["accepted"] > (NUM // 2 if drafter == "draft_model" else 15)
    assert p_value(found["tokens"], exact) > 1e-3


@pytest.mark.full
def test_the_same_test_finds_a_rejected_token_that_is_kept(folder: Path, exact: np.ndarray) -> None:
    found = sample(folder, "async", "lookup", NUM, sabotage="a rejected token kept")
    assert p_value(found["tokens"], exact) < 1e-9
