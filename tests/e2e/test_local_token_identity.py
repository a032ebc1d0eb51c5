"""The local engine has the output of `model.generate`, for every drafter and batch size.

The real model in float32. The two cases of a drafter, chain and tree, take one half of the prompts each, with
prompts of all categories. FORERUN_E2E_IDENTITY=full runs all combinations with all prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.questions import FULL, read_questions
from forerun import LLM
from forerun.config import SpeculationConfig

pytestmark = pytest.mark.e2e

NUM_PROMPTS, NUM_TOKENS = (40, 128) if FULL else (14, 16)

DRAFTERS = ("ngram", "suffix", "model", "suffix,ngram,model")
BATCHES = (4, 16, 1)
ALL_CASES = list(product(DRAFTERS, (False, True), BATCHES))
SOME_CASES = [
    (drafter, tree, BATCHES[(i + tree) % 3]) for i, drafter in enumerate(DRAFTERS) for tree in (False, True)
]
NUM_HALF = (NUM_PROMPTS + 1) // 2
SEEDED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 7}

MakeLLM = Callable[[str, bool, int], LLM]


def prompts_of_case(drafter: str, tree: bool) -> slice:
    """The half of the prompts that a case runs."""
    if FULL:
        return slice(None)
    is_first = (DRAFTERS.index(drafter) + tree) % 2 == 0
    return slice(NUM_HALF) if is_first else slice(NUM_HALF, None)


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts(smollm2: Path) -> list[list[int]]:
    """Questions of all categories, in the chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    chats = [[{"role": "user", "content": text}] for text in read_questions(NUM_PROMPTS)]
    return [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        for chat in chats
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


@pytest.fixture(scope="module")
def make_llm(smollm2: Path, draft_model: Path) -> MakeLLM:
    """Makes an LLM that verifies every draft token, whether drafting pays or not."""

    def make(drafter: str, tree: bool, batch: int) -> LLM:
        spec = drafter.replace("model", f"model:{draft_model}")
        max_draft = 16 if FULL else 4 if "model" in drafter else 8  # the draft model is not much smaller
        config = SpeculationConfig(adaptive=False, max_draft=max_draft)
        loading: dict[str, Any] = {"dtype": "float32", "device": "cpu", "max_length": 4096}  # as the baseline
        return LLM(smollm2, spec, tree=tree, max_batch=batch, config=config, **loading)

    return make


@pytest.mark.parametrize(("drafter", "tree", "batch"), ALL_CASES if FULL else SOME_CASES)
def test_greedy_output_is_identical_to_transformers(
    make_llm: MakeLLM,
    baseline: list[list[int]],
    prompts: list[list[int]],
    drafter: str,
    tree: bool,
    batch: int,
) -> None:
    half = prompts_of_case(drafter, tree)
    results = make_llm(drafter, tree, batch).generate(prompts[half], max_tokens=NUM_TOKENS)
    assert sum(result.stats.num_accepted for result in results) > len(results)
    assert [list(result.token_ids) for result in results] == baseline[half]


@pytest.fixture(scope="module")
def seeded(make_llm: MakeLLM, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    results = make_llm("none", False, 1).generate(prompts, max_tokens=NUM_TOKENS, **SEEDED)
    return [result.token_ids for result in results]


@pytest.mark.parametrize(("drafter", "tree", "batch"), ALL_CASES if FULL else SOME_CASES[1::2])
def test_seeded_output_is_identical_to_non_speculative_decoding(
    make_llm: MakeLLM,
    seeded: list[tuple[int, ...]],
    prompts: list[list[int]],
    drafter: str,
    tree: bool,
    batch: int,
) -> None:
    half = prompts_of_case(drafter, tree)
    results = make_llm(drafter, tree, batch).generate(prompts[half], max_tokens=NUM_TOKENS, **SEEDED)
    assert sum(result.stats.num_accepted for result in results) > 0
    assert [result.token_ids for result in results] == seeded[half]
