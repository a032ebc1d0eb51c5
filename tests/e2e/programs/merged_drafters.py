"""Decodes a prompt with the two drafters of `scripted_drafters`, in one of the engines.

Arguments: engine (local or vllm), model, prompt (JSON), number of tokens. The answer has the output tokens
and the numbers of accepted tokens by drafter.
"""

from __future__ import annotations

import json
import sys

from e2e.programs import scripted_drafters
from e2e.programs.engine_output import Engine, answer
from forerun.config import SpeculationConfig

CONFIG = SpeculationConfig(
    drafters=("e2e.programs.scripted_drafters:Wrong", "e2e.programs.scripted_drafters:Right"),
    adaptive=False,
    max_draft=8,
)


def generate_local(model: str, prompt: list[int], num_tokens: int) -> list[int]:
    from forerun import LLM

    (result,) = LLM(model, config=CONFIG).generate([prompt], max_tokens=num_tokens, ignore_end=True)
    return list(result.token_ids)


def generate_vllm(model: str, prompt: list[int], num_tokens: int) -> list[int]:
    from vllm import SamplingParams

    from forerun.engines.vllm.launch import engine_arguments

    engine = Engine(model, max_model_len=128, skip_tokenizer_init=True, **engine_arguments(CONFIG))
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
    (output,) = engine.generate([{"prompt_token_ids": prompt}], params)
    tokens: list[int] = output["tokens"]
    return tokens


def main(engine: str, model: str, prompt: str, num_tokens: str) -> None:
    generate = {"local": generate_local, "vllm": generate_vllm}[engine]
    tokens = generate(model, json.loads(prompt), int(num_tokens))
    answer({"tokens": tokens, **scripted_drafters.accepted})


if __name__ == "__main__":
    main(*sys.argv[1:])
