"""vLLM with our scheduler and our sampler: the words of plain decoding, whatever the settings."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import ask
from safetensors.torch import save_file

from forerun.config import SpeculationConfig
from forerun.engines.vllm.launch import engine_arguments

SAMPLE = Path(__file__).parents[1] / "data" / "transcripts.jsonl"

pytestmark = pytest.mark.e2e

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "greedy with penalties": {"temperature": 0, "repetition_penalty": 1.1, "frequency_penalty": 0.2},
    "greedy with minimum tokens": {"temperature": 0, "min_tokens": 28},
    "greedy with bad words": {"temperature": 0, "bad_words": [" library", " the"]},
    "greedy with logprobs": {"temperature": 0, "logprobs": 2},
    "greedy with a bias": {"temperature": 0, "logit_bias": {"260": -4.0, "28": 3.0, "338": -100.0}},
    "greedy with a stop string": {"temperature": 0, "stop": ["library,", "need to"]},
    "greedy in a grammar": {"temperature": 0, "structured_outputs": {"regex": "([a-z]{2,8} ){12}end"}},
    "seeded in a grammar": {
        "temperature": 0.9,
        "seed": 16,
        "structured_outputs": {"choice": ["the waiting room became the reading room", "the library"]},
    },
    "seeded": {"temperature": 0.8, "top_p": 0.95, "seed": 11},
    "seeded, cool": {"temperature": 0.3, "seed": 12},
    "seeded with top-k and penalties": {
        "temperature": 0.6,
        "top_k": 20,
        "presence_penalty": 0.4,
        "repetition_penalty": 1.05,
        "seed": 13,
    },
    "seeded with min-p": {"temperature": 0.9, "min_p": 0.08, "seed": 17},
    "seeded with a bias": {"temperature": 0.7, "logit_bias": {"260": 2.0, "30": -100.0}, "seed": 18},
    "seeded with allowed tokens": {
        "temperature": 0.8,
        "allowed_token_ids": list(range(200, 3000)),
        "seed": 19,
    },
    "seeded with logprobs": {"temperature": 0.5, "seed": 14, "logprobs": 1},
    "seeded with prompt logprobs": {"temperature": 0.5, "seed": 20, "prompt_logprobs": 1},
    "greedy in a schema": {
        "temperature": 0,
        "structured_outputs": {
            "json": {
                "type": "object",
                "properties": {
                    "name_of_the_town": {"type": "string", "maxLength": 12},
                    "size": {"enum": ["small"]},
                },
                "required": ["name_of_the_town", "size"],
            }
        },
    },
    "seeded, two answers": {"temperature": 0.5, "seed": 15, "n": 2},
}

ASK = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams

model, sample, adapter = sys.argv[1:4]
asked, options = json.loads(sys.argv[4]), json.loads(sys.argv[5])
prompts = [{"prompt_token_ids": json.loads(line)["prompt"]} for line in open(sample)][:3]
settings = dict(dtype="float32", enforce_eager=True, max_model_len=512, disable_log_stats=False,
                enable_lora=True, max_lora_rank=8)
llm = LLM(model=model, **settings, **options)

def answers(outputs):
    return [{"tokens": list(one.token_ids), "logprobs": [
        sorted((token, round(value.logprob, 3)) for token, value in at.items()) for at in one.logprobs or []
    ]} for output in outputs for one in output.outputs]

def counter(name):
    return sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:spec_decode_num_" + name)

said = {}
for name, sampling in asked.items():
    if "structured_outputs" in sampling:
        sampling["structured_outputs"] = StructuredOutputsParams(**sampling["structured_outputs"])
    if "logit_bias" in sampling:
        sampling["logit_bias"] = {int(token): bias for token, bias in sampling["logit_bias"].items()}
    params = SamplingParams(max_tokens=32, **sampling)
    said[name] = answers([llm.generate([prompt], params, use_tqdm=False)[0] for prompt in prompts[:2]])
together = [SamplingParams(max_tokens=32, **asked[name]) for name in ("greedy", "seeded")]
said["together"] = answers(llm.generate(prompts * 2, together * len(prompts), use_tqdm=False))
lora = LoRARequest("adapter", 1, adapter)
both = together * len(prompts)
said["adapter"] = answers(llm.generate(prompts * 2, both, lora_request=lora, use_tqdm=False))
full = [{"prompt_token_ids": (prompt["prompt_token_ids"] * 9)[:497]} for prompt in prompts]
said["full"] = answers(llm.generate(full, together[1:] * len(full), use_tqdm=False))
said["preempted"] = sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")
said["accepted"] = counter("accepted_tokens")
said["steps"] = []
for salt in ("tenant", "another", "tenant"):
    before = counter("accepted_tokens")
    salted = {**prompts[2], "cache_salt": salt}
    llm.generate([salted], SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)
    said["steps"].append(counter("accepted_tokens") - before)
print("ANSWER", json.dumps(said))
"""


@pytest.fixture(scope="module")
def answers(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """What stock vLLM says without speculation, and what it says with our guesses and our sampler."""
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    ours = {
        **engine_arguments(SpeculationConfig(share_outputs=True, max_draft=12, adaptive=False)),
        "max_num_seqs": 6,
        "block_size": 32,
        "num_gpu_blocks_override": 22,  # room for one long request and a half: others are preempted
        "max_num_batched_tokens": 96,  # longer prompts are read in parts; plain decoding reads them in one go
    }
    adapter = make_adapter(tmp_path_factory.mktemp("adapter"))
    settings = json.dumps(SETTINGS)
    plain = ask(ASK, smollm2, SAMPLE, adapter, settings, json.dumps({}))
    return plain, ask(ASK, smollm2, SAMPLE, adapter, settings, json.dumps(ours))


def make_adapter(folder: Path) -> Path:
    """A random LoRA adapter for SmolLM2."""
    torch.manual_seed(0)
    weights = {}
    for layer, (name, width) in product(range(30), (("q_proj", 576), ("v_proj", 192))):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
        weights[f"{prefix}.lora_A.weight"] = torch.randn(8, 576) / 20
        weights[f"{prefix}.lora_B.weight"] = torch.randn(width, 8) / 20
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "bias": "none"}))
    return folder


@pytest.mark.parametrize("name", [*SETTINGS, "together", "adapter", "full"])
def test_the_words_are_those_of_plain_decoding(answers: tuple[Any, Any], name: str) -> None:
    plain, ours = answers
    for before, after in zip(plain[name], ours[name], strict=True):
        assert after["tokens"] == before["tokens"]
        assert len(after["logprobs"]) == len(before["logprobs"])
        for mine, stock in zip(after["logprobs"], before["logprobs"], strict=True):
            assert [token for token, _ in mine] == [token for token, _ in stock]
            assert [value for _, value in mine] == pytest.approx([value for _, value in stock], abs=0.01)


def test_guesses_were_accepted_on_the_way(answers: tuple[Any, Any]) -> None:
    plain, ours = answers
    assert plain["accepted"] == 0
    assert plain["adapter"] != plain["together"]
    assert ours["preempted"] > 0 == plain["preempted"]
    assert max(len(one["tokens"]) for one in ours["full"]) == 15, "to the last token there is room for"
    assert ours["accepted"] > 200


def test_an_earlier_answer_is_guessed_under_its_own_salt_only(answers: tuple[Any, Any]) -> None:
    _, ours = answers
    first, other, again = ours["steps"]
    assert other <= first, "what one tenant was told does not help another"
    assert again > first + 10, "the same tenant asks again"
