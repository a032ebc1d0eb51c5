"""Two tensor-parallel ranks of a tiny model sample identical tokens, with and without a seed.

Each rank samples for itself and continues from its own tokens, so ranks that disagree would diverge.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.engines import make_llamas, run_program
from forerun.config import SpeculationConfig
from forerun.engines.vllm.launch import engine_arguments

pytestmark = pytest.mark.e2e

RANKS = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
"""Functions may be sent to the ranks, and each rank is bound to its own core."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Random Llama models with four attention heads."""
    pytest.importorskip("transformers", reason="needs the extra `local`")
    return make_llamas(tmp_path_factory.mktemp("models"), vocab_size=64, heads=4)


@pytest.mark.usefixtures("all_cores")
def test_ranks_agree_on_every_token(models: tuple[Path, Path]) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")

    def emitted_by(options: dict[str, Any], **modes: dict[str, str] | None) -> Any:
        return run_program("two_ranks", models[0], json.dumps(modes), json.dumps(options), **RANKS)

    config = SpeculationConfig(draft_model=str(models[1]), adaptive=False, max_draft=8)
    looked_up, sampled = ({"forerun_drafter": name} for name in ("suffix", "model"))
    ours = emitted_by(engine_arguments(config), looked_up=looked_up, sampled=sampled)
    baseline = emitted_by({}, baseline=None)["baseline"]
    first, second = ours["recorded"]
    assert first == second
    assert len(first) > 60
    for mode in ("looked_up", "sampled"):
        assert ours[mode]["accepted"] > 20, ours[mode]["accepted"]
        assert ours[mode]["greedy"] == baseline["greedy"]
        assert ours[mode]["seeded"] == baseline["seeded"]
