"""Stock vLLM with our drafter in its hook: the same words, in fewer steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SAMPLE = Path(__file__).parents[1] / "data" / "transcripts.jsonl"

pytestmark = pytest.mark.e2e

ASK = """
import json, sys
from vllm import LLM, SamplingParams

model, sample, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
prompts = [{"prompt_token_ids": json.loads(line)["prompt"]} for line in open(sample)]
settings = dict(dtype="float32", enforce_eager=True, max_model_len=1024, disable_log_stats=False)
llm = LLM(model=model, **settings, **options)
greedy = SamplingParams(temperature=0, max_tokens=32)
alone = [llm.generate([prompt], greedy, use_tqdm=False)[0] for prompt in prompts]
together = llm.generate(prompts, greedy, use_tqdm=False)
counters = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
print("ANSWER", json.dumps({
    "alone": [list(output.outputs[0].token_ids) for output in alone],
    "together": [list(output.outputs[0].token_ids) for output in together],
    "counters": {name: value for name, value in counters.items() if "spec_decode" in name},
}))
"""


def ask(model: Path, **options: Any) -> Any:
    """Start an engine of its own, ask it everything in the sample, alone and together."""
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    finished = subprocess.run(
        [sys.executable, "-c", ASK, model, SAMPLE, json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("ANSWER ")]
    return json.loads(line.removeprefix("ANSWER "))


def test_the_same_words_in_fewer_steps(smollm2: Path) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    hook = {"method": "custom_class", "model": "forerun.engines.vllm.Drafter", "num_speculative_tokens": 16}
    plain, guessed = ask(smollm2), ask(smollm2, speculative_config=hook)
    assert guessed["alone"] == plain["alone"]
    assert guessed["together"] == plain["together"]
    accepted = guessed["counters"]["vllm:spec_decode_num_accepted_tokens"]
    drafted = guessed["counters"]["vllm:spec_decode_num_draft_tokens"]
    num_tokens = sum(len(output) for output in guessed["alone"] + guessed["together"])
    assert 0.2 * num_tokens < accepted <= drafted
