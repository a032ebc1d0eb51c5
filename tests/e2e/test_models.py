"""transformers loads the model directory that `make models` makes; serve/ loads it in vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("default")]

QUESTION = "What is the capital of France?"


def test_transformers_loads_the_model_and_it_answers_a_question(smollm2: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.bfloat16)
    assert model.config.vocab_size == 49_152
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**chat, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, chat["input_ids"].shape[1] :])
