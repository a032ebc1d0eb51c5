"""EAGLE-3 and MTP heads on vLLM's V1 runner: identical output, and the distribution of unseeded requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.chi_square import exact_probabilities, p_value
from e2e.engines import run_program
from forerun.config import SpeculationConfig
from forerun.engines.vllm.launch import engine_arguments
from v2_bench.models import Models, write_eagle3, write_target
from v2_bench.settings import SETTINGS

pytest.importorskip("vllm", reason="needs vLLM: make setup")
pytest.importorskip("transformers", reason="needs the extra `local`")

pytestmark = pytest.mark.e2e

NAMES = ("greedy", "top-p", "penalties with top-k")
NUM, VOCAB = 20_000, 16
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 5 + [3, 1, 4]


def head_arguments(name: str, head: Path | None) -> dict[str, Any]:
    """Engine arguments with a head, every draft token of which is verified."""
    config = SpeculationConfig(drafters=("model",), draft_model=name, adaptive=False)
    given: dict[str, Any] = {"method": "mtp", "num_speculative_tokens": 2}
    if head is not None:
        given = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    return engine_arguments(config, runner="v1", speculative_config=given)


@pytest.mark.parametrize("name", ["eagle3", pytest.param("mtp", marks=pytest.mark.full)])
def test_a_head_on_v1_leaves_the_output_unchanged(v2_models: Models, name: str) -> None:
    model = v2_models.mtp if name == "mtp" else v2_models.target
    head = None if name == "mtp" else v2_models.eagle3
    settings = json.dumps({each: SETTINGS[each] for each in NAMES})
    stock = run_program("heads", model, settings, json.dumps({}))
    ours = run_program("heads", model, settings, json.dumps(head_arguments(str(head or name), head)))
    assert ours["outputs"] == stock["outputs"]
    assert 0 < ours["accepted"] < ours["drafted"]


def test_a_head_on_v1_leaves_the_distribution_unchanged(tmp_path: Path) -> None:
    target, head = tmp_path / "target", tmp_path / "head"
    write_eagle3(head, write_target(target, vocab=VOCAB, sharpness=1.0, logit_scale=0.3), draft_vocab=12)
    arguments = map(json.dumps, (PROMPT, {"model": None}, head_arguments(str(head), head)))
    emitted = run_program("distribution", target, str(NUM), *arguments)["model"]
    assert emitted["accepted"] > 2000, "draft tokens were accepted"
    assert p_value(emitted["tokens"], exact_probabilities(target, PROMPT)) > 1e-3
