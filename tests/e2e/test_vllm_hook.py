"""Stock vLLM with our drafter in its hook: the same words, in fewer steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engines import ask

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


def test_the_same_words_in_fewer_steps(smollm2: Path) -> None:
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    hook = {"method": "custom_class", "model": "forerun.engines.vllm.Drafter", "num_speculative_tokens": 16}
    every = {"additional_config": {"forerun": {"adaptive": False}}}  # whether it pays here today or not
    plain = ask(ASK, smollm2, SAMPLE, json.dumps({}))
    guessed = ask(ASK, smollm2, SAMPLE, json.dumps({"speculative_config": hook, **every}))
    assert guessed["alone"] == plain["alone"]
    assert guessed["together"] == plain["together"]
    accepted = guessed["counters"]["vllm:spec_decode_num_accepted_tokens"]
    drafted = guessed["counters"]["vllm:spec_decode_num_draft_tokens"]
    num_tokens = sum(len(output) for output in guessed["alone"] + guessed["together"])
    assert 0.2 * num_tokens < accepted <= drafted
