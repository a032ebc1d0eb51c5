"""A decode step without draft tokens does the work of a stock step: rows, kernels, operations and copies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from v2_bench.models import Models
from v2_bench.parity import Drafter, drafter_folder, speculative_arguments
from v2_bench.processes import run_on_bench

pytest.importorskip("vllm", reason="needs vLLM: make setup")
pytest.importorskip("transformers", reason="needs the extra `local`")

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def stock(v2_models: Models) -> Any:
    return run_on_bench("v2_step_work", v2_models.target, "{}", "{}")


def in_any_order(steps: list[Any]) -> list[str]:
    """Steps as a multiset: with a draft model vLLM allocates a KV-cache block a few steps earlier."""
    return sorted(json.dumps(step) for step in steps)


@pytest.mark.parametrize("drafter", ["lookup", pytest.param("draft_model", marks=pytest.mark.full)])
def test_a_step_without_draft_tokens_is_a_stock_step(v2_models: Models, stock: Any, drafter: Drafter) -> None:
    options = json.dumps(speculative_arguments(drafter_folder(v2_models, drafter), "async", drafter))
    ours = run_on_bench("v2_step_work", v2_models.target, options, json.dumps({"forerun_drafter": "none"}))
    assert len(stock["steps"]) >= 8
    assert stock["steps"][2]["rows"] == 4
    assert len(stock["steps"][2]["kernels"]) > 5
    assert in_any_order(ours["steps"][-6:]) == in_any_order(stock["steps"][-6:])
    assert ours["tokens"] == stock["tokens"]
