"""Draft trees on vLLM's V2 runner generate the tokens of stock V2 without speculation, on the bench.

`make parity-v2 ARGS=--trees` runs the full matrix; here all settings share one batch of short requests.
"""

from __future__ import annotations

from typing import Any

import pytest

from v2_bench.models import Models
from v2_bench.parity import Drafter, compare, run_forerun, run_forerun_requests, run_parity
from v2_bench.requests import HEADS, PARITY
from v2_bench.sabotage import TREE_SABOTAGES
from v2_bench.scenarios import SCENARIOS

pytest.importorskip("vllm", reason="needs vLLM: make setup")
pytest.importorskip("transformers", reason="needs the extra `local`")

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def decoy_runs(v2_models: Models) -> dict[str, Any]:
    """The output with decoys: without a defect (""), by defect, and without one again, of one engine."""
    requests = [PARITY, *({**HEADS, "sabotage": name} for name in TREE_SABOTAGES), HEADS]
    requests.append({**PARITY, "batches": []})
    found = run_forerun_requests(v2_models, "sync", "decoys", requests)
    return dict(zip(("", *TREE_SABOTAGES, "again", "scenario"), found, strict=True))


@pytest.mark.parametrize("drafter", ["decoys", pytest.param("trees", marks=pytest.mark.full)])
def test_output_is_that_of_stock_v2_without_speculation(
    request: pytest.FixtureRequest, v2_models: Models, stock_v2: Any, drafter: Drafter
) -> None:
    if drafter == "decoys":
        ours = request.getfixturevalue("decoy_runs")[""]
    else:
        ours = run_forerun(v2_models, "sync", drafter, **PARITY)
    records = list(compare(stock_v2["parity"], ours))
    assert [each for each in records if not each["identical"]] == []
    assert [each["settings"] for each in records] == ["mixed", "repeated_prompts"]
    assert all(each["tokens_per_step"] > 1 for each in records)
    assert ours["prefix_cache_hits"] > 0
    assert ours["trees"]["side_path_wins"] > 0


def test_side_paths_win_in_a_quarter_of_the_steps_with_decoys(decoy_runs: dict[str, Any]) -> None:
    counts = decoy_runs["scenario"]["trees"]
    assert counts["side_path_wins"] > 0.25 * counts["trees"] > 1
    assert counts["rows"] <= 2 * counts["draft_tokens"]


@pytest.mark.parametrize("sabotage", TREE_SABOTAGES)
def test_the_comparison_finds_a_defect(stock_v2: Any, decoy_runs: dict[str, Any], sabotage: str) -> None:
    """The same engine without the defect has identical output, before and after."""
    baseline = stock_v2["heads"]
    assert not all(each["identical"] for each in compare(baseline, decoy_runs[sabotage]))
    assert all(each["identical"] for each in compare(baseline, decoy_runs["again"]))


@pytest.mark.full
@pytest.mark.parametrize("drafter", ["trees", "decoys"])
def test_scenarios_have_the_output_of_stock_v2(v2_models: Models, drafter: Drafter) -> None:
    stock = run_parity(v2_models.target, {}, batches=[], scenarios=list(SCENARIOS))
    ours = run_forerun(v2_models, "sync", drafter, batches=[], scenarios=list(SCENARIOS))
    records = {each["settings"]: each for each in compare(stock, ours)}
    assert [name for name, each in records.items() if not each["identical"]] == []
    assert list(records) == list(SCENARIOS)
    assert ours["num_preemptions"] > 0 == stock["num_preemptions"]
