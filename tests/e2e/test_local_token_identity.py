"""The local engine has the output of `model.generate`, for every drafter and batch size.

The real model in float32. FORERUN_E2E_IDENTITY=full runs all combinations (about an hour).
"""

from __future__ import annotations

import json
import os
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun import LLM
from forerun.config import SpeculationConfig

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"

FULL = os.environ.get("FORERUN_E2E_IDENTITY") == "full"
NUM_PROMPTS, NUM_TOKENS = (40, 128) if FULL else (13, 16)

DRAFTERS = ("ngram", "suffix", "model", "suffix,ngram,model")
BATCHES = (1, 4, 16)
ALL_CASES = list(product(DRAFTERS, (False, True), BATCHES))
SOME_CASES = [
    (drafter, tree, BATCHES[(i + tree) % 3]) for i, drafter in enumerate(DRAFTERS) for tree in (False, True)
]

needs_data = pytest.mark.skipif(
    not SHARED.exists() and "FORERUN_CI" not in os.environ, reason="needs ../shared/data beside the project"
)


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


def _name(row: dict[str, Any]) -> str:
    return str(row["category"])


@pytest.fixture(scope="module")
def prompts(smollm2: Path) -> list[list[int]]:
    """Questions of all categories of Spec-Bench in turn, in the chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    lines = (SHARED / "spec_bench" / "question.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    by_category = [[row for row in rows if row["category"] == name] for name in sorted({*map(_name, rows)})]
    chosen = [row for turn in zip_longest(*by_category) for row in turn if row][:NUM_PROMPTS]
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": row["turns"][0][: None if FULL else 700]}],
            add_generation_prompt=True,
            return_dict=True,
        )["input_ids"]
        for row in chosen
    ]


@pytest.fixture(scope="module")
def baseline(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Non-speculative output of transformers."""
    outputs = []
    for prompt in prompts:
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            top_p=None,
            temperature=None,
        )
        outputs.append(out[0, len(prompt) :].tolist())
    return outputs


def llm(smollm2: Path, drafter: str, *, tree: bool, batch: int) -> LLM:
    """An LLM that verifies every draft token, whether drafting pays or not."""
    spec = drafter.replace("model", f"model:{SHARED / 'draft-smollm2'}")
    config = SpeculationConfig(adaptive=False, max_draft=16 if FULL else 8)
    loading: dict[str, Any] = {"dtype": "float32", "device": "cpu", "max_length": 4096}  # as the baseline
    return LLM(smollm2, spec, tree=tree, max_batch=batch, config=config, **loading)


@needs_data
@pytest.mark.parametrize(("drafter", "tree", "batch"), ALL_CASES if FULL else SOME_CASES)
def test_greedy_output_is_identical_to_transformers(
    smollm2: Path, baseline: list[list[int]], prompts: list[list[int]], drafter: str, tree: bool, batch: int
) -> None:
    results = llm(smollm2, drafter, tree=tree, batch=batch).generate(prompts, max_tokens=NUM_TOKENS)
    assert sum(result.stats.num_accepted for result in results) > NUM_PROMPTS
    assert [list(result.token_ids) for result in results] == baseline


@pytest.fixture(scope="module")
def seeded(smollm2: Path, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    results = llm(smollm2, "none", tree=False, batch=1).generate(prompts, max_tokens=NUM_TOKENS, **SEEDED)
    return [result.token_ids for result in results]


SEEDED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 7}


@needs_data
@pytest.mark.parametrize(("drafter", "tree", "batch"), ALL_CASES if FULL else SOME_CASES[1::2])
def test_seeded_output_is_identical_to_non_speculative_decoding(
    smollm2: Path,
    seeded: list[tuple[int, ...]],
    prompts: list[list[int]],
    drafter: str,
    tree: bool,
    batch: int,
) -> None:
    results = llm(smollm2, drafter, tree=tree, batch=batch).generate(prompts, max_tokens=NUM_TOKENS, **SEEDED)
    assert sum(result.stats.num_accepted for result in results) > 0
    assert [result.token_ids for result in results] == seeded
