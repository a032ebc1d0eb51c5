"""In invariant mode, vLLM on a CPU emits the same log-probabilities with and without speculation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.engines import run_program
from forerun.config import SpeculationConfig
from forerun.engines.vllm.launch import engine_arguments
from random_models import random_llama
from v2_bench.processes import run_on_bench

pytest.importorskip("vllm", reason="needs vLLM: make setup")

pytestmark = pytest.mark.e2e

CONFIG = SpeculationConfig(drafters=("suffix",), share_outputs=True, adaptive=False, invariant=True)
"""Outputs of the non-speculative run are drafts of the speculative one, so most draft tokens are accepted."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two random layers with SmolLM2's shapes, in which kernels choose another reduction for one row."""
    folder = tmp_path_factory.mktemp("invariant")
    random_llama(1024, (576, 1536), (9, 3), max_length=128, spread=0.05).save_pretrained(folder)
    return folder


@pytest.fixture(
    scope="module",
    params=[
        ("v1", "bfloat16"),
        pytest.param(("v1", "float32"), marks=pytest.mark.full),
        ("v2", "float32"),
        pytest.param(("v2", "bfloat16"), marks=pytest.mark.full),
    ],
    ids="-".join,
)
def emitted(request: pytest.FixtureRequest, model: Path) -> Any:
    """The outputs of one engine in all modes; on V2 with async scheduling."""
    runner, dtype = request.param
    if runner == "v2":
        options = json.dumps(engine_arguments(CONFIG, runner="v2", asynchronous=True))
        return run_on_bench("invariant", model, dtype, options)
    options = json.dumps(engine_arguments(CONFIG, runner="v1"))
    return run_program("invariant", model, dtype, options, VLLM_USE_V2_MODEL_RUNNER="0")


def test_output_does_not_depend_on_speculation_or_on_the_batch(emitted: Any) -> None:
    alone = emitted["outputs"].pop("alone")
    assert {name for name, each in emitted["outputs"].items() if each == alone} == {
        "together",
        "alone, speculative",
        "together, speculative",
    }
    before, after = emitted["accepted"]
    assert before == 0
    assert after > 100


def test_one_linear_layer_without_blocks_is_detected(emitted: Any) -> None:
    assert emitted["sabotaged"]["alone"] != emitted["sabotaged"]["together, speculative"]
