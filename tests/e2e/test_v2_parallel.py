"""Two tensor-parallel ranks on the bench agree on every draft and every token.

With async scheduling, and with draft trees without it.
"""

from __future__ import annotations

import json

import pytest

from v2_bench.models import Models
from v2_bench.parity import Drafter, Mode, drafter_folder, speculative_arguments
from v2_bench.processes import run_on_bench

pytest.importorskip("vllm", reason="needs vLLM: make setup")
pytest.importorskip("transformers", reason="needs the extra `local`")

pytestmark = pytest.mark.e2e

RANKS = {
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
}
"""Functions may be sent to the ranks, and the engine and each rank have a process of their own."""


@pytest.mark.full
@pytest.mark.usefixtures("all_cores")
@pytest.mark.parametrize(
    ("drafter", "mode"), [("lookup", "async"), ("draft_model", "async"), ("decoys", "sync")]
)
def test_ranks_agree_on_every_draft_and_token(v2_models: Models, drafter: Drafter, mode: Mode) -> None:
    options = speculative_arguments(drafter_folder(v2_models, drafter), mode, drafter)
    ours = run_on_bench("v2_two_ranks", v2_models.target, json.dumps(options), **RANKS)
    first, second = ours["recorded"]
    assert first == second
    assert sum(num_drafted for kind, _, num_drafted in first if kind == "inputs") > 40
    assert ours["accepted"] > 20
