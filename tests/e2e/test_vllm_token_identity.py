"""vLLM with our scheduler and our sampler: the words of plain decoding, whatever the settings.

Most are asked together, which takes a fifth of the time that they take alone.
"""

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

pytest.importorskip("vllm", reason="needs vLLM: make setup")

SAMPLE = Path(__file__).parents[1] / "data" / "transcripts.jsonl"
LORA = {"enable_lora": True, "max_lora_rank": 8}

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

ENGINE = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams

model, sample, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
prompts = [{"prompt_token_ids": json.loads(line)["prompt"]} for line in open(sample)]
llm = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=512, disable_log_stats=False,
          block_size=32, **options)

def say(prompts, params, **how):
    return [{"tokens": list(one.token_ids), "logprobs": [
        sorted((token, round(value.logprob, 3)) for token, value in at.items()) for at in one.logprobs or []
    ]} for output in llm.generate(prompts, params, use_tqdm=False, **how) for one in output.outputs]

def counter(name):
    return sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:" + name)

greedy = SamplingParams(temperature=0, max_tokens=32)
"""

ASK = (
    ENGINE
    + """
adapter, asked = LoRARequest("adapter", 1, sys.argv[4]), json.loads(sys.argv[5])
for sampling in asked.values():
    if "structured_outputs" in sampling:
        sampling["structured_outputs"] = StructuredOutputsParams(**sampling["structured_outputs"])
    if "logit_bias" in sampling:
        sampling["logit_bias"] = {int(token): bias for token, bias in sampling["logit_bias"].items()}
asked = {name: SamplingParams(max_tokens=32, **sampling) for name, sampling in asked.items()}
two = [greedy, asked["seeded"]]
# With others in the batch, vLLM that knows of adapters fails at this, with speculation and without.
of_prompts = SamplingParams(temperature=0.5, seed=20, max_tokens=32, prompt_logprobs=1)

apart = [(prompt, params) for params in (*two, of_prompts) for prompt in prompts[:2]]
said = {"alone": [one for prompt, params in apart for one in say([prompt], params)]}
every = [(name, prompt, params) for name, params in asked.items() for prompt in prompts[:2]]
answers = say([prompt for _, prompt, _ in every], [params for _, _, params in every])
for name, _, params in every:
    said.setdefault(name, []).extend(answers.pop(0) for _ in range(params.n))
said["together"] = say(prompts[:3] * 2, two * 3)
said["adapter"] = say(prompts[:3] * 2, two * 3, lora_request=adapter)
full = [{"prompt_token_ids": (prompt["prompt_token_ids"] * 9)[:497]} for prompt in prompts[:3]]
said["full"] = say(full, asked["seeded"])
said["greedy, all prompts"] = say(prompts, greedy)
said["preempted"] = counter("num_preemptions")
said["accepted"] = counter("spec_decode_num_accepted_tokens")
said["steps"] = []
for salt in ("tenant", "another", "tenant") if said["accepted"] else ():
    before = counter("spec_decode_num_accepted_tokens")
    say([{**prompts[2], "cache_salt": salt}], SamplingParams(temperature=0, max_tokens=40))
    said["steps"].append(counter("spec_decode_num_accepted_tokens") - before)
print("ANSWER", json.dumps(said))
"""
)

HOOKED = (
    ENGINE
    + """
said = {"alone": [one for prompt in prompts[:2] for one in say([prompt], greedy)]}
said["greedy, all prompts"] = say(prompts, greedy)
said["accepted"] = counter("spec_decode_num_accepted_tokens")
said["drafted"] = counter("spec_decode_num_draft_tokens")
print("ANSWER", json.dumps(said))
"""
)


@pytest.fixture(scope="module")
def plain(smollm2: Path, adapter: Path) -> Any:
    """What stock vLLM says without speculation."""
    return ask(ASK, smollm2, SAMPLE, json.dumps(LORA), adapter, json.dumps(SETTINGS))


@pytest.fixture(scope="module")
def ours(smollm2: Path, adapter: Path) -> Any:
    """What it says with our guesses, our scheduler and our sampler, and little room."""
    tight = {
        "max_num_seqs": 6,
        "num_gpu_blocks_override": 22,  # for one long request and a half: others are preempted
        "max_num_batched_tokens": 96,  # longer prompts are read in parts; plain decoding reads them in one go
    }
    config = SpeculationConfig(share_outputs=True, max_draft=12, adaptive=False)
    options = json.dumps({**LORA, **engine_arguments(config), **tight})
    return ask(ASK, smollm2, SAMPLE, options, adapter, json.dumps(SETTINGS))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random one of LoRA's for SmolLM2."""
    folder = tmp_path_factory.mktemp("adapter")
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


@pytest.mark.parametrize("name", [*SETTINGS, "alone", "together", "adapter", "full", "greedy, all prompts"])
def test_the_words_are_those_of_plain_decoding(plain: Any, ours: Any, name: str) -> None:
    for before, after in zip(plain[name], ours[name], strict=True):
        assert after["tokens"] == before["tokens"]
        assert len(after["logprobs"]) == len(before["logprobs"])
        for mine, stock in zip(after["logprobs"], before["logprobs"], strict=True):
            assert [token for token, _ in mine] == [token for token, _ in stock]
            assert [value for _, value in mine] == pytest.approx([value for _, value in stock], abs=0.01)


def test_guesses_were_accepted_on_the_way(plain: Any, ours: Any) -> None:
    assert plain["accepted"] == 0
    assert plain["adapter"] != plain["together"]
    assert ours["preempted"] > 0 == plain["preempted"]
    assert max(len(one["tokens"]) for one in ours["full"]) == 15, "to the last token there is room for"
    assert ours["accepted"] > 200


def test_an_earlier_answer_is_guessed_under_its_own_salt_only(ours: Any) -> None:
    first, other, again = ours["steps"]
    assert other <= first, "what one tenant was told does not help another"
    assert again > first + 10, "the same tenant asks again"


def test_our_drafter_in_the_hook_of_stock_vllm(smollm2: Path, plain: Any) -> None:
    """Without our scheduler and our sampler: the same greedy words, in fewer steps."""
    hook = {
        "method": "custom_class",
        "model": "forerun.engines.vllm.LookupProposer",
        "num_speculative_tokens": 16,
    }
    every = {"additional_config": {"forerun": {"adaptive": False}}}  # whether it pays here today or not
    hooked = ask(HOOKED, smollm2, SAMPLE, json.dumps({"speculative_config": hook, **every}))
    assert hooked["alone"] == plain["alone"][:2]
    assert hooked["greedy, all prompts"] == plain["greedy, all prompts"]
    num_tokens = sum(len(one["tokens"]) for one in hooked["alone"] + hooked["greedy, all prompts"])
    assert 0.2 * num_tokens < hooked["accepted"] <= hooked["drafted"]
