"""transformers and vLLM load the model directory that `make models` makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


def test_vllm_loads_the_model_and_it_answers_a_question(smollm2: Path) -> None:
    """In a separate process, and in float32, because the first token is a near-tie in bfloat16."""
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    program = (
        "import json, sys\n"
        "from vllm import LLM, SamplingParams\n"
        "llm = LLM(sys.argv[1], dtype='float32', enforce_eager=True, max_model_len=256, max_num_seqs=2)\n"
        "chat = [{'role': 'user', 'content': sys.argv[2]}]\n"
        "out = llm.chat(chat, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)\n"
        "print(json.dumps(out[0].outputs[0].text))\n"
    )
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    ran = subprocess.run(
        [sys.executable, "-c", program, smollm2, QUESTION],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "Paris" in json.loads(ran.stdout.splitlines()[-1])
