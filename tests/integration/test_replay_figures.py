"""Tokens per step of the lookup drafters on recorded outputs of a real model.

The pinned figures are those of tests/data/replay.jsonl. The documents show figures of a larger set of
transcripts, which docs/records/replay.json has.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forerun.bench.replay import geometric_mean
from forerun.cli.main import app

ROOT = Path(__file__).parents[2]
TRANSCRIPTS = ROOT / "tests" / "data" / "replay.jsonl"
CATEGORIES = ("code_edit", "math_reasoning", "mt_bench", "qa", "rag", "summarization", "translation")

CHAIN = ("--drafter", "suffix", "--nodes", "16", "--chain")
TREE = ("--drafter", "suffix", "--nodes", "16")
SHARED = ("--drafter", "suffix", "--nodes", "32", "--share-outputs")
NGRAM = ("--drafter", "ngram")
VLLM = ("--drafter", "vllm-ngram", "--nodes", "4")
VLLM_8 = ("--drafter", "vllm-ngram", "--nodes", "8")
ALL_SOURCES = ("--sources", "suffix,static,recycled,last-logits")
PRICED = ("--price", "0.012")


@cache
def report(*options: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["replay", str(TRANSCRIPTS), *options, "--json"])
    assert result.exit_code == 0, result.output
    values: dict[str, Any] = json.loads(result.stdout)
    assert tuple(sorted(values["categories"])) == CATEGORIES
    return values


def figures(*options: str, key: str = "tokens_per_step") -> list[float]:
    """A figure by category."""
    return [report(*options)["categories"][name][key] for name in CATEGORIES]


@pytest.mark.parametrize(
    ("options", "expected", "mean", "mean_of_even_lines"),
    [
        (VLLM, [2.89, 1.75, 1.44, 1.33, 1.87, 2.20, 1.99], 1.868, 1.716),
        (VLLM_8, [3.57, 1.84, 1.49, 1.37, 2.05, 2.48, 2.10], 2.032, 1.852),
        (NGRAM, [3.97, 1.92, 1.54, 1.34, 2.46, 2.86, 2.26], 2.201, 2.024),
        (CHAIN, [4.14, 1.97, 1.56, 1.36, 2.52, 2.91, 2.28], 2.249, 2.048),
        (TREE, [4.38, 2.29, 1.85, 1.53, 2.71, 3.32, 2.45], 2.509, 2.274),
        (SHARED, [4.95, 2.66, 2.00, 1.70, 2.89, 3.67, 2.94], 2.813, 2.492),
        ((*TREE, "--sources", "suffix,static"), [4.22, 2.50, 2.09, 1.89, 2.82, 3.28, 2.69], 2.696, 2.464),
        ((*TREE, *ALL_SOURCES), [4.38, 2.56, 2.12, 1.87, 2.80, 3.25, 2.69], 2.714, 2.480),
        ((*CHAIN, *ALL_SOURCES), [4.18, 2.12, 1.68, 1.48, 2.52, 2.91, 2.36], 2.337, 2.149),
    ],
    ids=[
        "vllm-ngram-4",
        "vllm-ngram-8",
        "ngram",
        "chain",
        "tree",
        "earlier-outputs",
        "static-table",
        "all-sources",
        "all-sources-chain",
    ],
)
def test_tokens_per_step_by_category(
    options: tuple[str, ...], expected: list[float], mean: float, mean_of_even_lines: float
) -> None:
    assert [round(each, 2) for each in figures(*options)] == expected
    assert round(report(*options)["geometric_mean"], 3) == mean
    assert round(report(*options, "--lines", "even")["geometric_mean"], 3) == mean_of_even_lines


@pytest.mark.parametrize("nodes", ["4", "8"])
def test_with_a_price_per_draft_token_the_suffix_drafter_leads_except_on_short_answers(nodes: str) -> None:
    theirs = figures("--drafter", "vllm-ngram", "--nodes", nodes, *PRICED, key="tokens_per_cost")
    for drafts, behind in ((CHAIN, ["qa"]), (TREE, [])):
        ours = figures(*drafts, *PRICED, key="tokens_per_cost")
        rows = zip(CATEGORIES, ours, theirs, strict=True)
        assert [name for name, mine, other in rows if mine <= other] == behind


def test_a_tree_beats_a_chain_with_as_many_draft_tokens_in_each_category() -> None:
    chain, tree = report(*CHAIN)["categories"], report(*TREE)["categories"]
    for name in CATEGORIES:
        assert chain[name]["draft_tokens_per_step"] == tree[name]["draft_tokens_per_step"] == 16
        assert tree[name]["tokens_per_step"] > chain[name]["tokens_per_step"]


README_LINES = {
    "vllm-ngram, K = 4",
    "suffix, chain of 16",
    "suffix, tree of 16",
    "suffix, tree of 32, earlier outputs",
}


def recorded(lines: str, figure: str = "tokens_per_step") -> dict[str, list[float]]:
    """The recorded figures of every configuration by category, and their geometric mean."""
    record = json.loads((ROOT / "docs" / "records" / "replay.json").read_text(encoding="utf-8"))
    rows = {row["name"]: row[lines] for row in record["lines"] if row["figure"] == figure}
    by_name = {name: [row[category] for category in CATEGORIES] for name, row in rows.items()}
    return {name: [*row, geometric_mean(row)] for name, row in by_name.items()}


def test_the_documents_have_the_recorded_figures() -> None:
    readme, notes = (ROOT / "README.md").read_text(), (ROOT / "docs" / "lab-notes.md").read_text()
    for figure in ("tokens_per_step", "tokens_per_cost"):
        for name, row in recorded("all", figure).items():
            cells = " | ".join(f"{value:.2f}" for value in row)
            assert cells in notes, (name, figure)
            assert cells in readme or figure != "tokens_per_step" or name not in README_LINES


@pytest.mark.parametrize(
    ("name", "least", "ratio"),
    [
        ("suffix, chain of 16", 2.65, 1.25),
        ("suffix, tree of 16", 2.9, 1.35),
        ("suffix, tree of 32, earlier outputs", 3.3, 1.5),
    ],
)
def test_the_record_has_more_tokens_per_step_than_vllms_rule(name: str, least: float, ratio: float) -> None:
    even = recorded("even")
    assert recorded("all")[name][-1] >= least
    assert even[name][-1] / even["vllm-ngram, K = 4"][-1] >= ratio


@pytest.mark.parametrize("theirs", ["vllm-ngram, K = 4", "vllm-ngram, K = 8"])
@pytest.mark.parametrize("lines", ["all", "even"])
def test_in_the_record_the_priced_suffix_drafter_leads_in_each_category(theirs: str, lines: str) -> None:
    rows = recorded(lines, "tokens_per_cost")
    pairs = zip(rows["suffix, chain of 16"], rows[theirs], strict=True)
    assert all(mine > other for mine, other in pairs)
