"""Required acceptance of the lookup drafters on recorded outputs of a real model."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forerun.bench.replay import geometric_mean
from forerun.cli.main import app

ROOT = Path(__file__).parents[2]
TRANSCRIPTS = ROOT.parent / "shared" / "data" / "transcripts.jsonl"

pytestmark = pytest.mark.skipif(
    not TRANSCRIPTS.exists() and not os.environ.get("FORERUN_CI"),
    reason="the recorded transcripts are not beside the project; CI has them and fails without",
)

CHAIN = ("--drafter", "suffix", "--nodes", "16", "--chain")
TREE = ("--drafter", "suffix", "--nodes", "16")
SHARED = ("--drafter", "suffix", "--nodes", "32", "--share-outputs")
VLLM = ("--drafter", "vllm-ngram", "--nodes", "4")
VLLM_8 = ("--drafter", "vllm-ngram", "--nodes", "8")
PRICED = ("--price", "0.012")


@cache
def report(*options: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["replay", str(TRANSCRIPTS), *options, "--json"])
    assert result.exit_code == 0, result.output
    values: dict[str, Any] = json.loads(result.stdout)
    assert len(values["categories"]) == 7
    return values


def test_vllms_ngram_rule_has_the_tokens_per_step_of_earlier_records() -> None:
    values = report(*VLLM)
    found = {name: round(line["tokens_per_step"], 2) for name, line in values["categories"].items()}
    assert found == {
        "code_edit": 3.22,
        "math_reasoning": 1.79,
        "mt_bench": 1.59,
        "qa": 1.73,
        "rag": 2.20,
        "summarization": 1.93,
        "translation": 2.51,
    }
    assert values["geometric_mean"] == pytest.approx(2.08, abs=0.005)


@pytest.mark.parametrize(
    ("options", "least", "ratio"), [(CHAIN, 2.65, 1.25), (TREE, 2.9, 1.35), (SHARED, 3.3, 1.5)]
)
def test_more_tokens_per_step_than_vllms_rule(options: tuple[str, ...], least: float, ratio: float) -> None:
    assert report(*options)["geometric_mean"] >= least
    even = report(*options, "--lines", "even")["geometric_mean"]
    assert even / report(*VLLM, "--lines", "even")["geometric_mean"] >= ratio


@pytest.mark.parametrize("nodes", ["4", "8"])
@pytest.mark.parametrize("lines", ["all", "even"])
def test_with_a_price_per_draft_token_the_suffix_drafter_leads_in_each_category(
    nodes: str, lines: str
) -> None:
    ours = report(*CHAIN, *PRICED, "--lines", lines)["categories"]
    theirs = report("--drafter", "vllm-ngram", "--nodes", nodes, *PRICED, "--lines", lines)["categories"]
    behind = [name for name in ours if ours[name]["tokens_per_cost"] <= theirs[name]["tokens_per_cost"]]
    assert not behind


def test_a_tree_beats_a_chain_with_as_many_draft_tokens_in_each_category() -> None:
    chain, tree = report(*CHAIN)["categories"], report(*TREE)["categories"]
    for name in chain:
        assert chain[name]["draft_tokens_per_step"] == tree[name]["draft_tokens_per_step"] == 16
        assert tree[name]["tokens_per_step"] > chain[name]["tokens_per_step"]


def row(*options: str, key: str = "tokens_per_step") -> str:
    """A row of a table as in the documents."""
    categories = report(*options)["categories"]
    figures = [categories[name][key] for name in sorted(categories)]
    return " | ".join(f"{figure:.2f}" for figure in [*figures, geometric_mean(figures)])


def test_the_documents_have_the_measured_figures() -> None:
    readme, notes = (ROOT / "README.md").read_text(), (ROOT / "docs" / "lab-notes.md").read_text()
    shown: list[tuple[str, ...]] = [VLLM, CHAIN, TREE, SHARED]
    for options in shown:
        assert row(*options) in readme
    for options in [*shown, VLLM_8, ("--drafter", "ngram"), ("--nodes", "32")]:
        assert row(*options) in notes
    for options in [VLLM, VLLM_8, CHAIN, TREE]:
        assert row(*options, *PRICED, key="tokens_per_cost") in notes
