"""Generates with many sampling settings, alone, in batches, with a LoRA adapter and up to the maximum length.

Arguments: model, transcript file, engine options (JSON), LoRA adapter, sampling settings by name (JSON).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams

from e2e.programs.engine_output import Engine, answer, read_prompts

NUM_TOKENS = 32
SALTS = ("tenant", "another", "tenant")


def sampling_params(settings: dict[str, Any]) -> Any:
    """The parameters for settings that were read from JSON."""
    if "structured_outputs" in settings:
        settings["structured_outputs"] = StructuredOutputsParams(**settings["structured_outputs"])
    if "logit_bias" in settings:
        settings["logit_bias"] = {int(token): bias for token, bias in settings["logit_bias"].items()}
    return SamplingParams(max_tokens=NUM_TOKENS, **settings)


def by_settings(engine: Engine, prompts: list[Any], params: dict[str, Any]) -> dict[str, list[Any]]:
    """The outputs for all settings, from one batch."""
    requests = [(name, prompt, each) for name, each in params.items() for prompt in prompts]
    outputs = engine.generate([prompt for _, prompt, _ in requests], [each for _, _, each in requests])
    found: dict[str, list[Any]] = {}
    for name, _, each in requests:
        found.setdefault(name, []).extend(outputs.pop(0) for _ in range(each.n))
    return found


def accepted_by_salt(engine: Engine, prompt: dict[str, Any]) -> list[float]:
    """Accepted draft tokens of the same request for each of `SALTS`, in this order."""
    accepted = []
    for salt in SALTS:
        before = engine.num_accepted
        engine.generate([{**prompt, "cache_salt": salt}], SamplingParams(temperature=0, max_tokens=40))
        accepted.append(engine.num_accepted - before)
    return accepted


def main(model: str, transcripts: str, options: str, adapter: str, settings: str) -> None:
    engine = Engine(model, max_model_len=512, block_size=32, **json.loads(options))
    prompts = read_prompts(transcripts)
    params = {name: sampling_params(each) for name, each in json.loads(settings).items()}
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
    two = [greedy, params["seeded"]]
    # In a batch with other requests, vLLM with LoRA enabled fails on this, with and without speculation.
    of_prompts = SamplingParams(temperature=0.5, seed=20, max_tokens=NUM_TOKENS, prompt_logprobs=1)
    apart = [(prompt, each) for each in (*two, of_prompts) for prompt in prompts[:2]]
    full = [{"prompt_token_ids": (prompt["prompt_token_ids"] * 9)[:497]} for prompt in prompts[:3]]
    emitted: dict[str, Any] = {
        "alone": [one for prompt, each in apart for one in engine.generate([prompt], each)],
        **by_settings(engine, prompts[:2], params),
        "together": engine.generate(prompts[:3] * 2, two * 3),
        "adapter": engine.generate(prompts[:3] * 2, two * 3, lora_request=LoRARequest("adapter", 1, adapter)),
        "full": engine.generate(full, params["seeded"]),
        "greedy, all prompts": engine.generate(prompts, greedy),
        "preempted": engine.counter("num_preemptions"),
        "accepted": engine.num_accepted,
    }
    emitted["steps"] = accepted_by_salt(engine, prompts[2]) if emitted["accepted"] else []
    answer(emitted)


if __name__ == "__main__":
    main(*sys.argv[1:])
