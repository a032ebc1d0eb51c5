"""With forerun's scheduler and sampler, vLLM generates the tokens of non-speculative decoding.

Most settings run in one batch, which takes a fifth of the time of separate runs.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from e2e.engines import run_program
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


@pytest.fixture(scope="module")
def baseline(smollm2: Path, adapter: Path) -> Any:
    """The output of stock vLLM without speculation."""
    return run_program("token_identity", smollm2, SAMPLE, json.dumps(LORA), adapter, json.dumps(SETTINGS))


@pytest.fixture(scope="module")
def ours(smollm2: Path, adapter: Path) -> Any:
    """The output with forerun's drafts, scheduler and sampler, and with little memory."""
    tight = {
        "max_num_seqs": 6,
        "num_gpu_blocks_override": 22,  # enough for 1.5 long requests: others are preempted
        "max_num_batched_tokens": 96,  # chunked prefill; the baseline prefills each prompt in one step
    }
    config = SpeculationConfig(share_outputs=True, max_draft=12, adaptive=False)
    options = json.dumps({**LORA, **engine_arguments(config), **tight})
    return run_program("token_identity", smollm2, SAMPLE, options, adapter, json.dumps(SETTINGS))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LoRA adapter for SmolLM2."""
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
def test_the_output_is_that_of_non_speculative_decoding(baseline: Any, ours: Any, name: str) -> None:
    for expected, found in zip(baseline[name], ours[name], strict=True):
        assert found["tokens"] == expected["tokens"]
        assert len(found["logprobs"]) == len(expected["logprobs"])
        for mine, stock in zip(found["logprobs"], expected["logprobs"], strict=True):
            assert [token for token, _ in mine] == [token for token, _ in stock]
            assert [value for _, value in mine] == pytest.approx([value for _, value in stock], abs=0.01)


def test_draft_tokens_were_accepted(baseline: Any, ours: Any) -> None:
    assert baseline["accepted"] == 0
    assert baseline["adapter"] != baseline["together"]
    assert ours["preempted"] > 0 == baseline["preempted"]
    assert max(len(one["tokens"]) for one in ours["full"]) == 15, "up to max_model_len"
    assert ours["accepted"] > 200


def test_an_earlier_output_is_drafted_only_under_its_own_salt(ours: Any) -> None:
    first, other, again = ours["steps"]
    assert other <= first, "outputs of one tenant do not help another"
    assert again > first + 10, "the same tenant repeats its request"


def test_the_lookup_proposer_in_stock_vllm(smollm2: Path, baseline: Any) -> None:
    """Without forerun's scheduler and sampler: identical greedy tokens, in fewer steps."""
    hook = {
        "method": "custom_class",
        "model": "forerun.engines.vllm.LookupProposer",
        "num_speculative_tokens": 16,
    }
    every = {"forerun": {"adaptive": False}}  # verify every draft token, at any machine speed
    options = {"speculative_config": hook, "additional_config": every}
    hooked = run_program("lookup_proposer", smollm2, SAMPLE, json.dumps(options))
    assert hooked["alone"] == baseline["alone"][:2]
    assert hooked["greedy, all prompts"] == baseline["greedy, all prompts"]
    num_tokens = sum(len(one["tokens"]) for one in hooked["alone"] + hooked["greedy, all prompts"])
    assert 0.2 * num_tokens < hooked["accepted"] <= hooked["drafted"]
