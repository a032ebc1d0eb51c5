"""forerun on vLLM's V2 runner generates the tokens of stock V2 without speculation, on the bench.

`make parity-v2` runs the full matrix; here all settings share one batch of short requests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.programs.engine_output import read_prompts
from v2_bench.models import Models
from v2_bench.parity import (
    Drafter,
    Mode,
    compare,
    run_forerun,
    run_forerun_requests,
    run_parity,
    speculative_arguments,
)
from v2_bench.requests import PARITY
from v2_bench.sabotage import SABOTAGES
from v2_bench.scenarios import SCENARIOS

pytest.importorskip("vllm", reason="needs vLLM: make setup")
pytest.importorskip("transformers", reason="needs the extra `local`")

pytestmark = pytest.mark.e2e

NEAR_THE_END = "up_to_the_context"


@pytest.fixture(scope="module")
def lookup_runs(v2_models: Models) -> dict[str, Any]:
    """The output with lookup and async scheduling: without a defect (""), then by defect, of one engine."""
    scenario = {**PARITY, "batches": []}
    requests = [PARITY, *({**scenario, "sabotage": name} for name in SABOTAGES), scenario]
    found = run_forerun_requests(v2_models, "async", "lookup", requests)
    return dict(zip(("", *SABOTAGES, "again"), found, strict=True))


@pytest.mark.parametrize("drafter", ["lookup", "draft_model"])
@pytest.mark.parametrize("mode", ["async", pytest.param("sync", marks=pytest.mark.full)])
def test_output_is_that_of_stock_v2_without_speculation(
    request: pytest.FixtureRequest, v2_models: Models, stock_v2: Any, mode: Mode, drafter: Drafter
) -> None:
    if (mode, drafter) == ("async", "lookup"):
        ours = request.getfixturevalue("lookup_runs")[""]
    else:
        ours = run_forerun(v2_models, mode, drafter, **PARITY)
    records = list(compare(stock_v2["parity"], ours))
    assert [each for each in records if not each["identical"]] == []
    assert [each["settings"] for each in records] == ["mixed", "repeated_prompts"]
    assert all(each["tokens_per_step"] > 1.1 for each in records)
    assert ours["is_async"] == (mode == "async")
    assert ours["prefix_cache_hits"] > 0


@pytest.mark.full
@pytest.mark.parametrize("drafter", ["lookup", "draft_model"])
def test_scenarios_have_the_output_of_stock_v2(v2_models: Models, drafter: Drafter) -> None:
    stock = run_parity(v2_models.target, {}, batches=[], scenarios=list(SCENARIOS))
    ours = run_forerun(v2_models, "async", drafter, batches=[], scenarios=list(SCENARIOS))
    records = {each["settings"]: each for each in compare(stock, ours)}
    assert [name for name, each in records.items() if not each["identical"]] == []
    assert list(records) == list(SCENARIOS)
    assert all(each["tokens_per_step"] > 1.1 for name, each in records.items() if name != NEAR_THE_END)
    assert ours["num_preemptions"] > 0 == stock["num_preemptions"]


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_the_comparison_finds_a_defect(stock_v2: Any, lookup_runs: dict[str, Any], sabotage: str) -> None:
    """The same engine without the defect has identical output, before and after."""
    baseline = stock_v2["parity"]
    assert [each["identical"] for each in compare(baseline, lookup_runs[sabotage])] == [False]
    assert [each["identical"] for each in compare(baseline, lookup_runs["again"])] == [True]


@pytest.mark.full
def test_smollm2_generates_identical_tokens_with_async_scheduling(smollm2: Path) -> None:
    transcripts = Path(__file__).parents[1] / "data" / "transcripts.jsonl"
    prompts = [each["prompt_token_ids"][:120] for each in read_prompts(str(transcripts))[:3]]
    request = {
        "prompts": prompts,
        "settings": ["greedy", "temperature 0.5"],
        "batches": ["batched"],
        "num_prompts": 3,
        "num_tokens": 24,
    }
    options = {"skip_tokenizer_init": True, "max_model_len": 512, "kv_cache_memory_bytes": 300_000_000}
    stock = run_parity(smollm2, options, **request)
    ours = run_parity(smollm2, {**options, **speculative_arguments(None, "async", "lookup")}, **request)
    records = list(compare(stock, ours))
    assert ours["is_async"]
    assert [each["identical"] for each in records] == [True, True]
    assert max(each["tokens_per_step"] for each in records) > 1.05
