"""`drafters: [a, b]` means the same in both engines: both draft, and the best continuation is verified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from e2e.engines import make_llamas, run_program

pytestmark = pytest.mark.e2e

PROMPT, NUM_TOKENS = [3, 1, 4, 1, 5, 9, 2, 6], 36


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target model."""
    return make_llamas(tmp_path_factory.mktemp("models"), vocab_size=16, heads=2)[0]


@pytest.fixture(scope="module")
def output(model: Path) -> list[int]:
    """The greedy output without speculation, by transformers."""
    transformers = pytest.importorskip("transformers", reason="needs the extra `local`")
    llama = transformers.LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokens = list(PROMPT)
    with torch.no_grad():
        for _ in range(NUM_TOKENS):
            tokens.append(int(llama(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("engine", ["local", "vllm"])
def test_both_drafters_draft_and_the_best_continuation_is_verified(
    engine: str, model: Path, output: list[int]
) -> None:
    text = json.dumps(PROMPT + output)
    found = run_program(
        "merged_drafters", engine, model, json.dumps(PROMPT), str(NUM_TOKENS), SCRIPTED_TEXT=text
    )
    assert found["tokens"] == output
    num_steps = NUM_TOKENS // 5
    assert found["Right"] == [4] * num_steps, "four accepted tokens and a bonus token in every step"
    assert found["Wrong"] == [1] * num_steps, "the verdict on its own draft: the second token was wrong"
